package request

import (
	"bytes"
	"cmp"
	"errors"
	"net/url"
	"slices"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Poll is a poll of a session.
type Poll struct {
	transport.Request
	HasAck bool
	Fault  error // what is wrong with the query; nil: nothing
}

// PollOf reads the query of a poll. A token in it becomes the request's credentials. It does not
// allocate if the query has only ack and mode.
func PollOf(query []byte, accepts Accepts, c *auth.Credentials) (p Poll) {
	// Fast path: most polls.
	if p, plain := plainPoll(query); plain && !accepts.None {
		p.Format, p.Gzip = accepts.Format, accepts.Gzip
		return p
	}
	q := parseQuery(string(query))
	q.takeToken(c)
	p.Mode, p.Ack, p.HasAck = q.mode(), q.number("ack", 0, maxAck, 0), q.values.Has("ack")
	p.Format, p.Gzip, p.Fault = q.format(accepts), accepts.Gzip, q.err
	return p
}

// plainPoll reads "ack=K&mode=M" without escapes. Anything else needs parseQuery.
func plainPoll(query []byte) (Poll, bool) {
	p := Poll{HasAck: true}
	p.Mode = transport.Batch
	rest, ok := bytes.CutPrefix(query, []byte("ack="))
	n := 0
	for n < len(rest) && n < maxPlainDigits && rest[n] >= '0' && rest[n] <= '9' {
		p.Ack = p.Ack*10 + uint64(rest[n]-'0')
		n++
	}
	if !ok || n == 0 {
		return p, false
	}
	if rest = rest[n:]; len(rest) == 0 {
		return p, true
	}
	mode, ok := bytes.CutPrefix(rest, []byte("&mode="))
	for _, m := range plainModes {
		if ok && string(mode) == string(m) {
			p.Mode = m
			return p, true
		}
	}
	return p, false
}

var plainModes = []transport.Mode{transport.Batch, transport.Stream, transport.Single, transport.Multiple}

// maxPlainDigits keeps an ack below maxAck.
const maxPlainDigits = 15

// maxAck is the largest integer that every JSON reader keeps exactly.
const maxAck = 1<<53 - 1

// A TopicPoll is a poll without a session.
type TopicPoll struct {
	Open   session.Opening
	Answer transport.Request
	Hello  bool  // the answer begins with where the topics begin
	Fault  error // what is wrong with the query or the body; nil: nothing
}

// TopicPollOf reads a poll whose topics are in the query. A token in it becomes the request's
// credentials.
func TopicPollOf(query string, accepts Accepts, c *auth.Credentials) TopicPoll {
	q := parseQuery(query)
	q.takeToken(c)
	return q.topicPoll(q.topics(), accepts)
}

// TopicPollInBody reads a poll whose topics, at most so many, are in the body.
func TopicPollInBody(query string, accepts Accepts, body []byte, most int) TopicPoll {
	q := parseQuery(query)
	var named struct {
		Topics []wire.Start `json:"topics"`
	}
	q.fail(decodeBody(body, &named, most))
	return q.topicPoll(named.Topics, accepts)
}

func (q *query) topicPoll(topics []wire.Start, accepts Accepts) (p TopicPoll) {
	if len(topics) == 0 {
		q.fail(noTopic("the poll"))
	}
	mode := q.mode()
	p.Answer = transport.Request{Mode: mode, Format: q.format(accepts), Gzip: accepts.Gzip}
	p.Hello = word(q, "hello", "false", "true") == "true" || mode == transport.Stream || slices.ContainsFunc(topics, func(s wire.Start) bool { return s.From != wire.FromPosition }) // it must learn where they begin
	p.Open = q.opening(topics, mode)
	p.Fault = q.err
	return p
}

func noTopic(what string) *wire.Problem {
	return problem.New(wire.CodeInvalidRequest, "name a topic: ?topic=prices.acme", "%s names no topic", what)
}

// Events is the request of an EventSource.
type Events struct {
	Open            session.Opening
	Session         string            // the one that the URL names instead of topics; empty: none
	Had             transport.EventID // of the client's last event; zero: none
	HeartbeatEvents bool
	Fault           error // what is wrong with the query; nil: nothing
}

// EventsOf reads the query of an EventSource and the values of its Last-Event-ID. A token in the
// query becomes the request's credentials.
func EventsOf(query string, lastEventID []string, c *auth.Credentials) Events {
	q := parseQuery(query)
	q.takeToken(c)
	r := Events{Session: q.one("session"), Had: q.lastEventID(lastEventID), HeartbeatEvents: word(&q, "heartbeat", "comment", "event") == "event"}
	r.Open = q.opening(q.topics(), transport.Stream)
	switch {
	case r.Session != "" && (len(r.Open.Topics) > 0 || q.values.Has("client")):
		q.fail(ErrSessionAlone)
	case r.Session == "" && len(r.Open.Topics) == 0:
		q.fail(noTopic("the stream"))
	}
	r.Fault = q.err
	return r
}

// ErrSessionAlone refuses a session beside what describes another one.
var ErrSessionAlone = problem.New(wire.CodeInvalidRequest, "send session alone, and subscribe when the connection is open", "session cannot be combined with topics or client")

// lastEventID reads the id of the client's last event. An EventSource sends it in a header
// when it reconnects, and a polyfill in the query. A page that makes a new EventSource puts
// it in the query as last_event_id, which later reconnects repeat, so both of the others
// are newer. session=ID&ack=K in the query is the id ~ID:K. An empty id is none, as in a browser.
func (q *query) lastEventID(headers []string) transport.EventID {
	text, name := q.oneOrEmpty("last_event_id"), q.one("session")
	if name != "" && text == "" && q.values.Has("ack") {
		text = string(transport.EventID{Session: name, Count: q.number("ack", 0, maxAck, 0)}.Append(nil))
	}
	for _, name := range polyfillEventIDs {
		for _, id := range q.values[name] {
			text = cmp.Or(id, text) // some append it to what they sent before
		}
	}
	if len(headers) > 0 && headers[0] != "" {
		header := query{values: url.Values{"Last-Event-ID": headers}}
		text = header.one("Last-Event-ID")
		q.fail(header.err)
	}
	if text == "" {
		return transport.EventID{}
	}
	id, err := transport.ParseEventID(text)
	if err == nil && name != "" && id.Session != name {
		err = errors.New("the event id belongs to another session")
	}
	q.fail(problemOf(err, wire.CodeInvalidPosition, "send the id of an event of this stream, or no id"))
	return id
}

// polyfillEventIDs are the parameters that polyfills of EventSource use, to avoid a preflight
// request: event-source-polyfill (Yaffle), Mercure's clients (two), and eventsource-polyfill.
var polyfillEventIDs = []string{"lastEventId", "Last-Event-ID", "lastEventID", "evs_last_event_id"}
