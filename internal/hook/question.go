package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// appendQuestion appends the request body about m, which by wants to publish. ttl
// is the time to live that the publisher set, or 0:
//
//	{"type":"publish","topic":"a.b","principal":"ann","claims":{"name":"Ann"},"message":{"id":"k","key":"x","client":"c","ttl":60,"data":[1,2]}}
//
// Claims and members that m does not have are omitted. The payload is written as in a frame.
func appendQuestion(dst []byte, by Principal, m *wire.Message, ttl time.Duration) []byte {
	dst = cbor.AppendJSONString(append(dst, `{"type":"`+wire.HookPublish+`","topic":`...), m.Position.Topic)
	name, _ := json.Marshal(by.Subject) // never fails, even if it is not UTF-8
	dst = append(append(dst, `,"principal":`...), name...)
	if by.Claims != nil {
		dst = append(append(dst, `,"claims":`...), by.Claims...)
	}
	dst = append(dst, `,"message":{`...)
	begin := len(dst)
	for _, member := range [...]struct{ name, value string }{{"id", m.ID}, {"key", m.Key}, {"client", m.Client}} {
		if member.value != "" {
			dst = cbor.AppendJSONString(append(dst, `,"`+member.name+`":`...), member.value)
		}
	}
	if ttl > 0 {
		dst = strconv.AppendInt(append(dst, `,"ttl":`...), int64(ttl/time.Second), 10)
	}
	dst = m.AppendPayload(dst)
	dst = append(dst[:begin], dst[begin+1:]...) // the first comma
	return append(dst, "}}\n"...)
}

// An authorizeQuestion is the request body about a request to subscribe.
type authorizeQuestion struct {
	Type      string          `json:"type"`
	Principal string          `json:"principal"` // empty: anonymous
	Claims    json.RawMessage `json:"claims,omitempty"`
	Client    string          `json:"client,omitempty"` // the name that the client gave itself
	Open      bool            `json:"open"`             // a session, a poll or a stream with the topics; false: changes a session
	Topics    []string        `json:"topics"`
	Patterns  []string        `json:"patterns"`
}

// encode returns the body of a request. It never fails: claims are JSON, and all else strings,
// numbers and lists of them.
func encode(v any) []byte {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // patterns have '>'
	_ = enc.Encode(v)
	return body.Bytes()
}

// parseAnswer parses a wire.HookAnswer. An empty body is an empty answer. It is strict: a
// misspelt refusal must not allow anything. The caller checks the message itself.
func parseAnswer(body []byte) (wire.HookAnswer, error) {
	var answer wire.HookAnswer
	if body = bytes.TrimSpace(body); len(body) == 0 {
		return answer, nil
	}
	if err := wire.UnmarshalStrict(body, &answer); err != nil {
		return wire.HookAnswer{}, fmt.Errorf("it cannot be read: %w", err)
	}
	if answer.Message != nil && answer.Refuse != nil {
		return wire.HookAnswer{}, errors.New("it has both a message and a refusal")
	}
	return answer, nil
}
