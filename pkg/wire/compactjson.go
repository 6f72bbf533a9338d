package wire

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// MaxJSONDepth is how deep a published JSON value may nest.
const MaxJSONDepth = cbor.MaxDepth

// CompactJSON checks a JSON value (RFC 8259) and returns it without insignificant white
// space. body must be one value, valid UTF-8 and at most MaxJSONDepth deep. No object may
// have the same field twice, however its name is escaped; half a surrogate pair in a name
// equals any other half, because most readers turn both into U+FFFD. Numbers and escapes
// stay as they are. The result is body itself if it is compact, and otherwise has no spare
// capacity, because it may be kept for long.
func CompactJSON(body []byte) ([]byte, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, errors.New("the body is empty, which is not a JSON value")
	}
	if !utf8.Valid(body) {
		return nil, errors.New("the body is not valid UTF-8")
	}
	if d := jsonDepth(body); d > MaxJSONDepth {
		return nil, fmt.Errorf("the JSON value nests more than %d deep", MaxJSONDepth)
	}
	// UTF-8 is checked above, so that half a surrogate pair in an escape is not an error.
	compact, err := jsontext.AppendFormat(nil, body, jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true))
	if err == nil {
		if len(compact) == len(body) {
			return body, nil
		}
		return compact, nil
	}
	// No error repeats the path to the mistake, which may be as long as the body.
	e, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok:
		return nil, fmt.Errorf("the body is not one JSON value: %s", Quote(err.Error()))
	case errors.Is(err, jsontext.ErrDuplicateName):
		return nil, fmt.Errorf("an object has the member %s twice", Quote(e.JSONPointer.LastToken()))
	}
	return nil, fmt.Errorf("the body is not one JSON value: %w after offset %d", e.Err, e.ByteOffset)
}

// jsonDepth returns the deepest nesting of brackets outside strings. It checks nothing
// else: jsontext does.
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
