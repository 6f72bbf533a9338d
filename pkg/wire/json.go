package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// appendMessage appends m as one NDJSON line:
//
//	{"position":"a.b@k3:18","time":1700000000000,"data":[1,2]}
//	{"position":"a.b@k3:19","time":1700000000000,"type":"text/plain","text":"hi"}
//	{"position":"a.b@k3:20","time":1700000000000,"type":"image/png","base64":"iVBO"}
//
// The position comes first and the payload last. id and key, where present, stand
// after the time.
func appendMessage(dst []byte, m *Message) []byte {
	dst = append(dst, `{"position":"`...)
	dst = m.Position.Append(dst)
	dst = append(dst, `","time":`...)
	dst = strconv.AppendInt(dst, m.Time, 10)
	if m.ID != "" {
		dst = cbor.AppendJSONString(append(dst, `,"id":`...), m.ID)
	}
	if m.Key != "" {
		dst = cbor.AppendJSONString(append(dst, `,"key":`...), m.Key)
	}
	return append(m.AppendPayload(dst), '}', '\n')
}

// AppendPayload appends the members of a JSON object that carry the payload, with a
// comma before each: data, or type with text or base64.
func (m *Message) AppendPayload(dst []byte) []byte {
	if m.Type == "" {
		return appendData(append(dst, `,"data":`...), m)
	}
	dst = cbor.AppendJSONString(append(dst, `,"type":`...), m.Type)
	if m.IsText() {
		return cbor.AppendJSONString(append(dst, `,"text":`...), m.Data)
	}
	dst = append(dst, `,"base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, m.Data)
	return append(dst, '"')
}

// appendData appends a JSON payload, which came in JSON or in CBOR.
func appendData(dst []byte, m *Message) []byte {
	if m.CBOR {
		return cbor.AppendJSON(dst, m.Data)
	}
	return append(dst, m.Data...)
}

// appendGap appends g as one NDJSON line.
func appendGap(dst []byte, g *Gap) []byte {
	dst = append(dst, `{"gap":{"topic":"`...)
	dst = append(dst, g.Topic...)
	dst = append(dst, `","reason":`...)
	dst = cbor.AppendJSONString(dst, string(g.Reason)) // one to come may be any string
	dst = append(dst, `,"after":"`...)
	dst = g.After.Append(dst)
	dst = append(dst, `","position":"`...)
	dst = g.Position.Append(dst)
	return append(dst, "\"}}\n"...)
}

func appendNamed(dst []byte, name string, value any) []byte {
	dst = append(dst, `{"`...)
	dst = append(dst, name...)
	dst = append(dst, `":`...)
	dst = appendValue(dst, name, value)
	return append(dst, "}\n"...)
}

// appendValue appends what is sent seldom.
func appendValue(dst []byte, name string, value any) []byte {
	b, err := json.Marshal(value)
	if err != nil {
		panic("BUG: " + name + " does not marshal: " + err.Error())
	}
	return append(dst, b...)
}

// MaxJSONDepth is how deep a published JSON value may nest.
const MaxJSONDepth = cbor.MaxDepth

// CompactJSON checks that body is one JSON value (RFC 8259), valid UTF-8 and at
// most MaxJSONDepth deep, none of whose objects has a member twice in whatever way
// its name is escaped, and returns it without insignificant white space. Numbers and
// escapes stay as they are. (In names, every half of a surrogate pair is the same
// character: most readers make U+FFFD of it.) The result is body itself if it was compact,
// and otherwise no larger than it has to be: it may be kept for long.
func CompactJSON(body []byte) ([]byte, error) { return compactJSON(body, membersOnce) }

// IsCompactJSON reports whether data is JSON as CompactJSON returns it, but for members
// that come twice: daemons did not refuse them always.
func IsCompactJSON(data []byte) bool {
	compact, err := compactJSON(data, membersTwice)
	return err == nil && len(compact) == len(data)
}

// How JSON is read: strings and numbers stay as they are written, and UTF-8 was
// checked before, so that half a surrogate pair in an escape is no error.
var (
	membersOnce  = jsontext.AllowDuplicateNames(false)
	membersTwice = jsontext.AllowDuplicateNames(true)
)

func compactJSON(body []byte, members jsontext.Options) ([]byte, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, errors.New("the body is empty, which is not a JSON value")
	}
	if !utf8.Valid(body) {
		return nil, errors.New("the body is not valid UTF-8")
	}
	if d := jsonDepth(body); d > MaxJSONDepth {
		return nil, fmt.Errorf("the JSON value is more than %d deep", MaxJSONDepth)
	}
	compact, err := jsontext.AppendFormat(nil, body, jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true), members)
	switch {
	case err != nil:
		return nil, notJSON(err)
	case len(compact) == len(body):
		return body, nil
	}
	return compact, nil
}

// notJSON says what is wrong, in our words where a client is likely to meet them.
func notJSON(err error) error {
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && errors.Is(err, jsontext.ErrDuplicateName) {
		return fmt.Errorf("an object has the member %.40q twice", e.JSONPointer.LastToken())
	}
	return fmt.Errorf("the body is not one JSON value: %s", strings.TrimPrefix(err.Error(), "jsontext: "))
}

// jsonDepth returns the deepest nesting of brackets outside strings. It looks at
// nothing else: jsontext judges the rest.
func jsonDepth(b []byte) int {
	depth, deepest, inString := 0, 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}
