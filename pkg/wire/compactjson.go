package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

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
