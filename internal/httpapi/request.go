package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// maxRequestBytes bounds the bodies that are requests, not messages.
const maxRequestBytes = 1 << 20

// readBody reads a request's body of at most max bytes.
func readBody(w http.ResponseWriter, r *http.Request, limit int) ([]byte, error) {
	body, err := readAll(http.MaxBytesReader(w, r.Body, int64(limit)))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge(limit)
	}
	if problem, ok := errors.AsType[*wire.Problem](err); ok {
		return nil, problem
	}
	if err != nil {
		return nil, wire.NewProblem(wire.CodeInvalidRequest, "send the whole body", "the body did not arrive: %v", err)
	}
	// The rest of the request takes its time: it may be a poll.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return body, nil
}

func tooLarge(limit int) *wire.Problem {
	return wire.NewProblem(wire.CodeMessageTooLarge, "send less at a time", "the body exceeds %d bytes", limit)
}

// readAll reads r to its end. It takes memory as bytes come, not as they are
// announced, and returns no more than they need: a message may be kept for long.
func readAll(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(r)
	return bytes.Clone(body), err
}

// expectBody gives a client the rest timeout from now on to send what it
// announced, and counts what comes until over is called. It holds for every request:
// net/http reads what a handler left before it lets the answer go.
func (a *API) expectBody(w http.ResponseWriter, r *http.Request) (over func()) {
	if !hasBody(r) {
		return func() {}
	}
	// An error means that the connection knows no deadlines, as in some tests.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.Polls.RestTimeout()))
	b := &body{ReadCloser: r.Body, part: part{api: a, who: a.whoOf(r, "")}}
	r.Body = b
	return b.over
}

// closeIfFramedTwice closes the connection after a request whose length a proxy may have
// read otherwise: one with both Content-Length and Transfer-Encoding (RFC 9112, section
// 6.1). net/http removes one of the two headers, so the request could have had both if it
// is chunked, or if it has a length in HTTP/1.0, where net/http ignores Transfer-Encoding.
func closeIfFramedTwice(w http.ResponseWriter, r *http.Request) {
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) && hasBody(r) {
		w.Header().Set("Connection", "close")
		r.Close = true // the lane does not take the connection over
	}
}

// hasBody reports whether a body comes with r. What http.Request says of Body for
// servers, http.NoBody, does not hold for HTTP/2.
func hasBody(r *http.Request) bool { return r.ContentLength != 0 }

// readJSON reads a body that is one JSON value of v's shape, with no other
// members. An empty body is v as it stands.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	text, err := readBody(w, r, maxRequestBytes)
	if held, ok := r.Body.(*body); ok {
		defer held.over() // the request may be a poll, and last
	}
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

// unreadable tells what is wrong with a body, in the client's words.
func unreadable(err error) *wire.Problem {
	switch code := wire.CodeOf(err); code {
	case "":
	case wire.CodeInvalidRequest:
		return wire.NewProblem(code, "see PROTOCOL.md, Sessions and polls", "%v", err)
	default:
		return wire.NewProblem(code, "write topic, topic@oldest or topic@epoch:offset", "%v", err)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return wire.NewProblem(wire.CodeInvalidRequest, "see PROTOCOL.md for what it is", "%q may not be a %s", e.Field, e.Value)
	}
	return wire.NewProblem(wire.CodeInvalidRequest, "see PROTOCOL.md for the members",
		"the body cannot be read: %s", strings.TrimPrefix(err.Error(), "json: "))
}

// query parses the query strictly: net/url's Query drops what it cannot read.
func query(r *http.Request) (url.Values, error) { return parseQuery(r.URL.RawQuery) }

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

// outside tells that what is given is not a whole number between lo and hi.
func outside(name, text string, lo, hi uint64) *wire.Problem {
	return wire.NewProblem(wire.CodeInvalidRequest, "give a whole number from "+strconv.FormatUint(lo, 10)+" to "+strconv.FormatUint(hi, 10),
		"%s=%.40q is not one", name, text)
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
	return false, wire.NewProblem(wire.CodeInvalidRequest, "say true or false", "%s=%.40q is neither", name, text)
}

// topicOf returns the topic in the path.
func topicOf(r *http.Request) (string, error) {
	return checkTopic(mux.Vars(r)["topic"])
}

func checkTopic(topic string) (string, error) {
	if err := wire.CheckTopic(topic); err != nil {
		return "", wire.NewProblem(wire.CodeInvalidTopic, "see PROTOCOL.md, Words", "%v", err)
	}
	return topic, nil
}
