package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// HookPublish is the type of what an application is asked before a message is
// published.
const HookPublish = "publish"

// AppendHookPublish appends what an application is asked about m, which principal
// wants to publish and which is to live for ttl, or as long as the history keeps it
// if ttl is 0:
//
//	{"type":"publish","topic":"a.b","principal":"","message":{"id":"k","key":"x","client":"c","ttl":60,"data":[1,2]}}
//
// Where m has no id, key, client or ttl, neither has the message. Its payload is
// written as in a frame.
func AppendHookPublish(dst []byte, principal string, m *Message, ttl time.Duration) []byte {
	dst = appendString(append(dst, `{"type":"`+HookPublish+`","topic":`...), m.Position.Topic)
	dst = appendValue(append(dst, `,"principal":`...), "principal", principal) // which nobody promises to be UTF-8
	dst = append(dst, `,"message":{`...)
	begin := len(dst)
	for _, member := range [...]struct{ name, value string }{{"id", m.ID}, {"key", m.Key}, {"client", m.Client}} {
		if member.value != "" {
			dst = appendString(append(dst, `,"`+member.name+`":`...), member.value)
		}
	}
	if ttl > 0 {
		dst = strconv.AppendInt(append(dst, `,"ttl":`...), int64(ttl/time.Second), 10)
	}
	dst = appendPayload(dst, m)
	dst = append(dst[:begin], dst[begin+1:]...) // the first comma
	return append(dst, "}}\n"...)
}

// A HookAnswer is what an application answers. Without Message and Refuse the message
// goes as it is.
type HookAnswer struct {
	// Message takes the message's place: its payload, type, key and ttl are as said
	// here, and what is left out it has not. Topic, client and id stay, and may be
	// left out or repeated.
	Message *PublishItem `json:"message,omitempty"`

	Refuse *HookRefusal `json:"refuse,omitempty"`
}

// A HookRefusal is why the message is not published, for its publisher.
type HookRefusal struct {
	Detail string `json:"detail,omitempty"`
}

// ParseHookAnswer reads a HookAnswer; an empty body is an empty one. It is strict: a
// refusal that is misspelt must not pass for consent. What the message says is for
// the publish to check.
func ParseHookAnswer(body []byte) (HookAnswer, error) {
	var answer HookAnswer
	if body = bytes.TrimSpace(body); len(body) == 0 {
		return answer, nil
	}
	if body[0] != '{' || !utf8.Valid(body) { // encoding/json would replace what is not
		return answer, errors.New("it is no JSON object in UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&answer); err != nil {
		return HookAnswer{}, fmt.Errorf("it cannot be read: %w", err)
	}
	switch {
	case dec.InputOffset() != int64(len(body)):
		return HookAnswer{}, errors.New("something stands behind the object")
	case !jsontext.Value(body).IsValid(membersOnce, jsontext.AllowInvalidUTF8(true)): // of two, encoding/json takes the last
		return HookAnswer{}, errors.New("an object in it has a member twice")
	case answer.Message != nil && answer.Refuse != nil:
		return HookAnswer{}, errors.New("it has a message and refuses it, too")
	}
	return answer, nil
}
