package wire

import (
	"bytes"
	jsonv1 "encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// UnmarshalStrict decodes one JSON value that somebody else wrote. It guesses nothing, as
// encoding/json would: a field has exactly its name, is known, and appears once in its object;
// base64 has no line breaks; no value is null, and no string has half of a surrogate pair, which
// has no form in UTF-8 (RFC 3629, section 3). A json.RawMessage may have both, because it is
// published as it is. The error says what is wrong without the terms of Go. It may have a Code
// method, as those of ParseStart have.
func UnmarshalStrict(text []byte, v any) error {
	if !utf8.Valid(text) {
		return errors.New("invalid UTF-8")
	}
	options := strict
	if bytes.Contains(text, []byte("null")) || bytes.Contains(text, []byte(`\ud`)) || bytes.Contains(text, []byte(`\uD`)) {
		options = strictest // to look at every value takes twice the time
	}
	return inWords(json.Unmarshal(text, v, options))
}

var strict = json.JoinOptions(
	json.RejectUnknownMembers(true),
	jsontext.AllowInvalidUTF8(true), // half of a surrogate pair in an escape, which a payload may have
)

// strictest is strict, and refuses null and halves of surrogate pairs.
var strictest = json.JoinOptions(strict, json.WithUnmarshalers(json.UnmarshalFromFunc(func(d *jsontext.Decoder, v any) error {
	_, published := v.(*jsonv1.RawMessage)
	text, isText := v.(*string)
	switch kind := d.PeekKind(); {
	case kind == 'n' && !published:
		return errNull
	case kind == '"' && isText:
		return decodeText(d, text)
	}
	return errors.ErrUnsupported // decode it as usual
})))

// decodeText decodes a string, which must have no half of a surrogate pair.
func decodeText(d *jsontext.Decoder, to *string) error {
	quoted, err := d.ReadValue()
	if err != nil {
		return err
	}
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return errHalf
	}
	*to = string(text)
	return nil
}

var (
	errNull = errors.New("must not be null: omit it, or send a value")
	errHalf = errors.New("must not have half of a surrogate pair: send both halves, or the bytes in base64")
)

// inWords returns an error of json.Unmarshal in our words.
func inWords(err error) error {
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		switch {
		case !errors.Is(err, jsontext.ErrDuplicateName):
			return fmt.Errorf("%w after offset %d", e.Err, e.ByteOffset)
		case strings.Contains(string(e.JSONPointer), "/data/"):
			return faultf(CodeInvalidBody, "an object in data has the member %s twice", Quote(e.JSONPointer.LastToken()))
		}
		return fmt.Errorf("an object has the member %s twice", Quote(e.JSONPointer.LastToken()))
	}
	e, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return err
	}
	if _, ok := errors.AsType[*fault](e.Err); ok {
		return e.Err
	}
	where := "the value"
	if e.JSONPointer != "" {
		where = Quote(strings.Join(slices.Collect(e.JSONPointer.Tokens()), "."))
	}
	kinds := map[jsontext.Kind]string{'"': "string", '0': "number", '{': "object", '[': "array", 't': "bool", 'f': "bool"}
	switch {
	case errors.Is(e.Err, json.ErrUnknownName):
		return fmt.Errorf("unknown field %s", Quote(e.JSONPointer.LastToken()))
	case errors.Is(e.Err, errNull):
		return fmt.Errorf("%s %w", where, errNull)
	case errors.Is(e.Err, errHalf):
		return fmt.Errorf("%s %w", where, errHalf)
	case e.JSONKind == '0' && e.JSONValue != nil:
		return fmt.Errorf("%s cannot be %s", where, strings.Trim(Quote(e.JSONValue), `"`))
	case e.Err != nil:
		return fmt.Errorf("%s is not valid: %w", where, e.Err)
	}
	return fmt.Errorf("%s cannot be of the type %s", where, kinds[e.JSONKind])
}

// unmarshal decodes what a server wrote. Fields have exactly their names. Unknown ones are
// ignored, because newer servers may send more, and a payload may be what other servers let pass.
func unmarshal(text []byte, v any) error {
	return json.Unmarshal(text, v, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}
