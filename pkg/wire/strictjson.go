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
// base64 has no line breaks; no value is null, except a json.RawMessage, which is published as it
// is. The error says what is wrong without the terms of Go. It may have a Code method, as those
// of ParseStart have.
func UnmarshalStrict(text []byte, v any) error {
	if !utf8.Valid(text) {
		return errors.New("invalid UTF-8")
	}
	options := strict
	if bytes.Contains(text, []byte("null")) { // to look at every value takes twice the time
		options = strictWithoutNull
	}
	return inWords(json.Unmarshal(text, v, options))
}

var strict = json.JoinOptions(
	json.RejectUnknownMembers(true),
	jsontext.AllowInvalidUTF8(true), // half of a surrogate pair in an escape, which a payload may have
)

var strictWithoutNull = json.JoinOptions(strict, json.WithUnmarshalers(json.UnmarshalFromFunc(func(d *jsontext.Decoder, v any) error {
	if _, published := v.(*jsonv1.RawMessage); d.PeekKind() == 'n' && !published {
		return errNull
	}
	return errors.ErrUnsupported // decode it as usual
})))

var errNull = errors.New("must not be null: omit it, or send a value")

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
