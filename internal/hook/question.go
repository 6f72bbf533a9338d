package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// appendQuestion appends what an application is asked about m, which principal
// wants to publish and which is to live for ttl, or as long as the history keeps it
// if ttl is 0:
//
//	{"type":"publish","topic":"a.b","principal":"","message":{"id":"k","key":"x","client":"c","ttl":60,"data":[1,2]}}
//
// Where m has no id, key, client or ttl, neither has the message. Its payload is
// written as in a frame.
func appendQuestion(dst []byte, principal string, m *wire.Message, ttl time.Duration) []byte {
	dst = cbor.AppendJSONString(append(dst, `{"type":"`+wire.HookPublish+`","topic":`...), m.Position.Topic)
	name, _ := json.Marshal(principal) // a string always marshals; it may be no UTF-8
	dst = append(append(dst, `,"principal":`...), name...)
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

// parseAnswer reads a wire.HookAnswer; an empty body is an empty one. It is strict: a
// refusal that is misspelt must not pass for consent. What the message says is for
// the publish to check.
func parseAnswer(body []byte) (wire.HookAnswer, error) {
	var answer wire.HookAnswer
	if body = bytes.TrimSpace(body); len(body) == 0 {
		return answer, nil
	}
	if body[0] != '{' || !utf8.Valid(body) { // encoding/json would replace what is not
		return answer, errors.New("it is no JSON object in UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&answer); err != nil {
		return wire.HookAnswer{}, fmt.Errorf("it cannot be read: %w", err)
	}
	switch {
	case dec.InputOffset() != int64(len(body)):
		return wire.HookAnswer{}, errors.New("something stands behind the object")
	case !jsontext.Value(body).IsValid(jsontext.AllowDuplicateNames(false), jsontext.AllowInvalidUTF8(true)): // of two, encoding/json takes the last
		return wire.HookAnswer{}, errors.New("an object in it has a member twice")
	case answer.Message != nil && answer.Refuse != nil:
		return wire.HookAnswer{}, errors.New("it has a message and refuses it, too")
	}
	return answer, nil
}
