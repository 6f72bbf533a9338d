package request

import (
	"cmp"
	"fmt"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// decodeBody decodes a body with lists of topics, at most so many together. An empty body leaves
// v as it is.
func decodeBody(body []byte, v any, most int) error {
	if len(body) == 0 {
		return nil
	}
	return decodeTopics(body, v, most, most)
}

// OpeningOf reads the wire.OpenRequest in a body, which names at most so many topics.
func OpeningOf(body []byte, most int) (o session.Opening, err error) {
	var r wire.OpenRequest
	if err := decodeBody(body, &r, most); err != nil {
		return o, err
	}
	o, err = openingOf(r.Topics, r.Client, r.Echo)
	o.Ack = r.Ack == nil || *r.Ack
	return o, err
}

// ChangeOf reads the wire.ChangeRequest in a body, which names at most so many topics.
func ChangeOf(body []byte, most int) (r wire.ChangeRequest, err error) {
	err = decodeBody(body, &r, most)
	return r, err
}

// A Connect opens or continues the session of a two-way connection.
type Connect struct {
	Open    session.Opening
	Session string  // the one to continue; empty: a new one
	Ack     *uint64 // how many frames the client has of it; nil: not stated
	Format  frame.Format
	Fault   error // what is wrong with it; nil: nothing
}

// ConnectOf reads the query of a WebSocket. A token in it becomes the request's credentials.
func ConnectOf(query string, accepts Accepts, c *auth.Credentials) (r Connect) {
	q := parseQuery(query)
	q.takeToken(c)
	r.Format = q.format(accepts)
	topics, client := q.topics(), q.text("client")
	r.Session = q.one("session")
	q.limitRate(topics, transport.Stream)
	echo, ack := q.echo(), q.number("ack", 0, maxAck, 0)
	if q.values.Has("ack") {
		r.Ack = &ack
	}
	q.fail(r.complete(topics, client, &echo))
	r.Fault = q.err
	return r
}

// complete completes a request with what describes a new session.
func (r *Connect) complete(topics []wire.Start, client *string, echo *bool) (err error) {
	switch {
	case r.Session == "" && r.Ack != nil:
		return problem.New(wire.CodeInvalidRequest, "add session, or omit ack", "ack needs a session")
	case r.Session == "":
		r.Open, err = openingOf(topics, client, echo)
		return err
	case len(topics) > 0 || client != nil:
		return ErrSessionAlone
	}
	return nil
}

// ConnectInItem reads the first item of a TCP connection, a CBOR map: the token becomes the
// connection's credentials, and the session is named. The map may be large, so Complete reads the
// rest, once the caller is known.
func ConnectInItem(item []byte, c *auth.Credentials) Connect {
	var named wire.ConnectRequest
	object, err := cbor.MembersToJSON(item, "auth", "session")
	switch {
	case err != nil:
		err = noOpening(err)
	case len(object) > LargeBody:
		err = problem.New(wire.CodeInvalidRequest, "send a shorter token", "auth and session must have at most %d bytes together", LargeBody)
	default:
		err = decode(object, &named)
	}
	token, errToken := filled("auth", named.Auth)
	id, errSession := filled("session", named.Session)
	c.Token = token
	return Connect{Session: id, Format: frame.CBOR, Fault: cmp.Or(err, errToken, errSession)}
}

// filled returns the text of a member, which must not be empty, or "" without the member.
func filled(name string, text *string) (string, error) {
	switch {
	case text == nil:
		return "", nil
	case *text == "":
		return "", empty(name)
	}
	return *text, nil
}

// Complete reads the whole of a connection's first item, which names at most so many topics.
func (r *Connect) Complete(item []byte, most int) error {
	if r.Session != "" && len(item) > LargeBody { // the caller may be unknown
		return ErrSessionAlone
	}
	object, _, err := cbor.MapToJSON(item)
	if err != nil {
		return noOpening(err)
	}
	var whole wire.ConnectRequest
	if err := decodeTopics(object, &whole, most, most); err != nil {
		return err
	}
	r.Ack = whole.Ack
	return r.complete(whole.Topics, whole.Client, whole.Echo)
}

func noOpening(err error) error {
	return problem.New(wire.CodeInvalidRequest, `begin with a map such as {"topics":["a"]}`, "the first item of the connection cannot be read: %v", err)
}

// LargeBody is the size in bytes from which bodies are decoded in turn: one of this size takes
// 2 ms.
const LargeBody = 64 << 10

// A Page is a part of a list.
type Page struct {
	Limit int
	After string // where it begins; see App.Topics
	Fault error
}

// Bounds of a page.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// PageOf reads the query for a part of a list.
func PageOf(query string) Page {
	q := parseQuery(query)
	p := Page{Limit: q.pageSize(), After: q.one("after")}
	p.Fault = q.err
	return p
}

// pageSize returns how many topics, frames or sessions to list.
func (q *query) pageSize() int { return int(q.number("limit", 1, MaxPage, DefaultPage)) }

// A History is a request for messages of a topic: for those after Start, or, if that is
// FromNewest, for the newest Limit messages before a position.
type History struct {
	Start  wire.Start
	Before wire.Position // of FromNewest; zero: the newest of all
	Limit  int
	Format frame.Format
	Fault  error
}

// HistoryOf reads the query for messages of a topic.
func HistoryOf(topic, query string, accepts Accepts) History {
	q := parseQuery(query)
	h := History{Limit: q.pageSize(), Format: q.format(accepts), Start: wire.Start{Topic: topic, From: wire.FromOldest}}
	after, before := q.position("after", topic), q.position("before", topic)
	newest := int(q.number("newest", 1, wire.MaxNewest, 0))
	switch {
	case countOf(after.Epoch != "", before.Epoch != "", newest > 0) > 1:
		q.fail(problem.New(wire.CodeInvalidRequest, "send only one of them", "a request must have at most one of after, before and newest"))
	case newest > 0 && q.values.Has("limit"):
		q.fail(problem.New(wire.CodeInvalidRequest, "omit limit", "newest already says how many messages"))
	case newest > 0:
		h.Start.From, h.Limit = wire.FromNewest, newest
	case before.Epoch != "":
		h.Start.From, h.Before = wire.FromNewest, before
	case after.Epoch != "":
		h.Start = wire.StartAfter(after)
	}
	h.Fault = q.err
	return h
}

// position returns the parameter that is a position of a topic, or zero.
func (q *query) position(name, topic string) wire.Position {
	text := q.one(name)
	if text == "" {
		return wire.Position{}
	}
	p, err := wire.ParsePosition(text)
	if err == nil && p.Topic != topic {
		err = fmt.Errorf("position %s is not a position of topic %s", wire.Quote(text), wire.Quote(topic))
	}
	q.fail(problemOf(err, wire.CodeInvalidPosition, "send a position of this topic"))
	return p
}

// SessionListOf reads the query for the list of sessions: how many, and in which order.
func SessionListOf(query string) (n int, by session.Order, err error) {
	q := parseQuery(query)
	n, by = q.pageSize(), word(&q, "sort", session.Orders()...)
	return n, by, q.err
}

// RevokeOf reads the wire.RevokeRequest in a body.
func RevokeOf(body []byte) (r wire.RevokeRequest, err error) {
	if err := decode(body, &r); err != nil {
		return r, err
	}
	given := countOf(r.Subject != "", r.TokenID != "", r.Session != 0)
	if others := depthOfCommas(body, 1, len(body)) > 0; given != 1 || others {
		return r, problem.New(wire.CodeInvalidRequest, `send {"subject":"alice"}, {"token_id":"…"} or {"session":17}`,
			"a body must have exactly one of subject, token_id and session, which must not be empty")
	}
	return r, nil
}
