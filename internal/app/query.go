package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// MaxRequestBytes bounds the bodies that are requests, not messages.
const MaxRequestBytes = 1 << 20

// TooLarge is the problem of a body of more than limit bytes.
func TooLarge(limit int) *wire.Problem {
	return wire.NewProblem(wire.CodeMessageTooLarge, "send less at a time", "the body exceeds %d bytes", limit)
}

// readJSON reads a body that is one JSON value of v's shape, with no other members. An
// empty body is v as it stands.
func readJSON(body Body, v any) error {
	text, err := body(MaxRequestBytes)
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return err
	}
	return decode(text, v)
}

// decode reads one JSON value of v's shape, with no other members.
func decode(body []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return unreadable(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return wire.NewProblem(wire.CodeInvalidRequest, "send one JSON value", "the body has more than one JSON value")
	}
	return nil
}

// unreadable says what is wrong with a body, in the client's words.
func unreadable(err error) *wire.Problem {
	switch code := wire.CodeOf(err); code {
	case "":
	case wire.CodeInvalidRequest:
		return wire.NewProblem(code, "see PROTOCOL.md, Sessions and polls", "%v", err)
	default:
		return wire.NewProblem(code, "write topic, topic@oldest or topic@epoch:offset", "%v", err)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		kind, _, _ := strings.Cut(e.Value, " ") // a number has its digits behind
		return wire.NewProblem(wire.CodeInvalidRequest, "see PROTOCOL.md for what it is", "%s may not be a %s", wire.Quote(e.Field), kind)
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if field, ok := strings.CutPrefix(text, "unknown field "); ok {
		if name, err := strconv.Unquote(field); err == nil {
			field = wire.Quote(name)
		}
		text = "unknown field " + field
	}
	return wire.NewProblem(wire.CodeInvalidRequest, "see PROTOCOL.md for the members", "the body cannot be read: %s", text)
}

// parseQuery parses a query strictly: net/url's Query drops what it cannot read.
func parseQuery(raw string) (url.Values, error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, wire.NewProblem(wire.CodeInvalidRequest, "percent-encode the query", "the query cannot be read: %v", err)
	}
	return q, nil
}

// one returns the parameter's one value, or "" if it is not there.
func one(q url.Values, name string) (string, error) {
	switch values := q[name]; len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	}
	return "", wire.NewProblem(wire.CodeInvalidRequest, "give it once", "%s is given %d times", name, len(q[name]))
}

// number returns the parameter as a whole number between lo and hi, or otherwise.
func number(q url.Values, name string, lo, hi, otherwise uint64) (uint64, error) {
	if !q.Has(name) {
		return otherwise, nil
	}
	text, err := one(q, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < lo || n > hi {
		return 0, outside(name, text, lo, hi)
	}
	return n, nil
}

// outside says that a value is not a whole number between lo and hi.
func outside(name, text string, lo, hi uint64) *wire.Problem {
	return wire.NewProblem(wire.CodeInvalidRequest, "give a whole number from "+strconv.FormatUint(lo, 10)+" to "+strconv.FormatUint(hi, 10),
		"%s=%s is not one", name, wire.Quote(text))
}

// truth returns the parameter as true or false, or otherwise.
func truth(q url.Values, name string, otherwise bool) (bool, error) {
	text, err := one(q, name)
	switch {
	case err != nil:
		return false, err
	case text == "":
		return otherwise, nil
	case text == "true", text == "false":
		return text == "true", nil
	}
	return false, wire.NewProblem(wire.CodeInvalidRequest, "say true or false", "%s=%s is neither", name, wire.Quote(text))
}

func checkTopic(topic string) error {
	if err := wire.CheckTopic(topic); err != nil {
		return wire.NewProblem(wire.CodeInvalidTopic, "see PROTOCOL.md, Words", "%v", err)
	}
	return nil
}

func reserved(topic string) *wire.Problem {
	return wire.NewProblem(wire.CodeReservedTopic, "begin the topic with another character than '_'", "topic %s is the daemon's own", wire.Quote(topic))
}
