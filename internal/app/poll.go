package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Poll is a request for a poll of a session.
type Poll struct {
	Session []byte           // the id
	Known   *session.Session // of the connection's last poll, which probably has the id; or nil
	Query   []byte           // raw
	Accepts Accepts
}

// Poll returns the session of a poll, and what to answer. It waits only for the check of a
// signature, and does not allocate if the query has only ack and mode. If the session has
// ended, its poll fails.
func (a *App) Poll(ctx context.Context, c Caller, p Poll) (s *session.Session, r transport.Request, err error) {
	defer a.recovered(&err)
	var q query
	r, plain := plainPoll(p.Query)
	if !plain {
		q = parseQuery(string(p.Query))
		c.takeToken(&q)
	}
	if err := a.admit(ctx, &c, limit.Polls); err != nil {
		return nil, r, err
	}
	s = p.Known
	if s == nil || s.ID() != string(p.Session) {
		if s, err = a.session(&c, p.Session); err != nil {
			return nil, r, err
		}
	}
	if err := a.mayReceive(&c, limit.Polls, s); err != nil {
		return nil, r, err
	}
	// Fast path: most polls.
	if plain && !p.Accepts.None && s.Acks() {
		r.Format, r.Gzip = p.Accepts.Format, p.Accepts.Gzip
		return s, r, nil
	}
	if plain {
		q = parseQuery(string(p.Query))
	}
	r = pollRequest(&q, s)
	r.Format, r.Gzip = q.format(p.Accepts), p.Accepts.Gzip
	return s, r, q.err
}

// plainPoll reads "ack=K&mode=M" without escapes. Anything else needs parseQuery.
func plainPoll(query []byte) (transport.Request, bool) {
	r := transport.Request{Mode: transport.Batch}
	rest, ok := bytes.CutPrefix(query, []byte("ack="))
	n := 0
	for n < len(rest) && n < maxPlainDigits && rest[n] >= '0' && rest[n] <= '9' {
		r.Ack = r.Ack*10 + uint64(rest[n]-'0')
		n++
	}
	if !ok || n == 0 {
		return r, false
	}
	if rest = rest[n:]; len(rest) == 0 {
		return r, true
	}
	mode, ok := bytes.CutPrefix(rest, []byte("&mode="))
	for _, m := range plainModes {
		if ok && string(mode) == string(m) {
			r.Mode = m
			return r, true
		}
	}
	return r, false
}

var plainModes = []transport.Mode{transport.Batch, transport.Stream, transport.Single, transport.Multiple}

// maxPlainDigits keeps an ack below maxAck.
const maxPlainDigits = 15

// maxAck is the largest integer that every JSON reader keeps exactly.
const maxAck = 1<<53 - 1

func pollRequest(q *query, s *session.Session) transport.Request {
	r := transport.Request{Mode: q.mode()}
	if s.Acks() {
		if r.Ack = q.number("ack", 0, maxAck, 0); !q.values.Has("ack") {
			q.fail(ackMissing())
		}
	}
	return r
}

func ackMissing() *wire.Problem {
	return problem.New(wire.CodeInvalidRequest,
		`add ack=K, the number of frames you have received (0 at first), or open the session with "ack":false`, "ack is missing")
}

// A TopicPoll is a request for a poll without a session.
type TopicPoll struct {
	Query   string // raw
	Body    Body   // has the topics; nil: the query has them
	Accepts Accepts
}

// PollTopics opens a session for one poll, and returns what to answer. End the session
// after the poll.
func (a *App) PollTopics(ctx context.Context, c Caller, p TopicPoll) (s *session.Session, r transport.Request, err error) {
	defer a.recovered(&err)
	q := parseQuery(p.Query)
	if p.Body == nil {
		c.takeToken(&q)
	}
	topics := q.topics()
	if ctx.Err() != nil && (takesLong(topics, nil) || a.cfg.Authorize.Selects(topics)) {
		return nil, r, ErrWouldWait
	}
	hello := false
	o, err := a.mayOpen(ctx, &c, limit.Polls, false, func() (session.Opening, error) {
		if p.Body != nil {
			var body struct {
				Topics []wire.Start `json:"topics"`
			}
			if err := a.readTopics(ctx, &c, p.Body, &body); err != nil {
				return session.Opening{}, err
			}
			topics = body.Topics
		}
		if len(topics) == 0 {
			q.fail(noTopic("the poll"))
		}
		r = transport.Request{Mode: q.mode(), Format: q.format(p.Accepts), Gzip: p.Accepts.Gzip}
		hello = q.truth("hello", false) || r.Mode == transport.Stream || slices.ContainsFunc(topics, withoutPosition)
		o := q.opening(topics, r.Mode)
		o.Peer = c.streamPeer(r.Mode)
		o.Brief = o.Peer == nil
		return o, q.err
	})
	if err != nil {
		return nil, r, err
	}
	s, positions, err := a.cfg.Sessions.OpenEphemeral(o, time.Now())
	if hello {
		r.Hello = &wire.Hello{Positions: positions}
	}
	return s, r, err
}

func isPattern(start wire.Start) bool { return wire.IsPattern(start.Topic) }

// withoutPosition reports whether the client must learn where a topic begins.
func withoutPosition(start wire.Start) bool { return start.From != wire.FromPosition }

func noTopic(what string) *wire.Problem {
	return problem.New(wire.CodeInvalidRequest, "name a topic: ?topic=prices.acme", "%s names no topic", what)
}

// An EventStream is the request of an EventSource.
type EventStream struct {
	Query       string   // raw
	LastEventID []string // the header's values
}

// OpenEvents opens the session of an event stream, or finds the one to continue, and
// returns what to answer. If session.ClosedByClient holds for the error, the client has
// ended the stream. End the session after the stream.
func (a *App) OpenEvents(ctx context.Context, c Caller, e EventStream) (s *session.Session, r transport.Request, err error) {
	defer a.recovered(&err)
	q := parseQuery(e.Query)
	c.takeToken(&q)
	var asked eventRequest
	o, err := a.mayOpen(ctx, &c, limit.Polls, q.one("session") != "", func() (session.Opening, error) {
		asked, err = e.read(&q)
		return asked.Opening, err
	})
	if err != nil {
		return nil, r, err
	}
	asked.Opening = o
	if s, r, err = a.openEvents(ctx, &c, &asked); err == nil && asked.heartbeatEvents {
		r.Events.SendHeartbeatEvents()
	}
	return s, r, err
}

// An eventRequest is an EventStream that was read.
type eventRequest struct {
	session.Opening
	session         string            // the one that the URL names instead of topics; empty: none
	had             transport.EventID // of the client's last event; zero: none
	heartbeatEvents bool
}

func (e EventStream) read(q *query) (eventRequest, error) {
	r := eventRequest{session: q.one("session"), had: e.lastEventID(q), heartbeatEvents: q.heartbeatEvents()}
	r.Opening = q.opening(q.topics(), transport.Stream)
	switch {
	case r.session != "" && (len(r.Topics) > 0 || q.values.Has("client")):
		q.fail(errSessionAlone)
	case r.session == "" && len(r.Topics) == 0:
		q.fail(noTopic("the stream"))
	}
	return r, q.err
}

// NamesSession reports whether the URL names a session instead of topics. If that session
// ends, the client cannot start another one.
func (e EventStream) NamesSession() bool {
	q := parseQuery(e.Query)
	return q.one("session") != ""
}

// LastEvent returns the id of the client's last event; zero: none, or it is invalid.
func (e EventStream) LastEvent() transport.EventID {
	q := parseQuery(e.Query)
	return e.lastEventID(&q)
}

// lastEventID reads the id of the client's last event. An EventSource sends it in a header
// when it reconnects, and a polyfill in the query. A page that makes a new EventSource puts
// it in the query as last_event_id, which later reconnects repeat, so both of the others
// are newer. session=ID&ack=K in the query is the id ~ID:K.
func (e EventStream) lastEventID(q *query) transport.EventID {
	text, name := q.one("last_event_id"), q.one("session")
	if name != "" && text == "" && q.values.Has("ack") {
		text = string(transport.EventID{Session: name, Count: q.number("ack", 0, maxAck, 0)}.Append(nil))
	}
	for _, name := range polyfillEventIDs {
		for _, id := range q.values[name] {
			text = cmp.Or(id, text) // some append it to what they sent before
		}
	}
	if len(e.LastEventID) > 0 && e.LastEventID[0] != "" {
		header := query{values: url.Values{"Last-Event-ID": e.LastEventID}}
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

func (a *App) openEvents(ctx context.Context, c *Caller, e *eventRequest) (*session.Session, transport.Request, error) {
	r := transport.Request{Mode: transport.Stream, Format: frame.EventStream}
	if e.session != "" || e.had.Session != "" {
		s, err := a.continueEvents(c, e)
		if err == nil {
			r.Ack, r.Events = e.had.Count, transport.EventsReferringTo(s, e.had.Count, e.session == "")
		}
		if err == nil || e.session != "" || session.ClosedByClient(err) {
			return s, r, err
		}
	}
	if err := a.resumeEvents(c, e); err != nil {
		return nil, r, err
	}
	if transport.NeedSession(e.Topics) {
		if err := a.cfg.Limiter.Admit(limit.Sessions, 1, c.Who); err != nil {
			return nil, r, err
		}
		e.Ack = true
		s, _, err := a.openSession(ctx, c, e.Opening)
		if err == nil {
			r.Events = transport.EventsReferringTo(s, 0, true)
		}
		return s, r, err
	}
	e.Peer = c.peer("sse")
	s, positions, err := a.cfg.Sessions.OpenEphemeral(e.Opening, time.Now())
	if err == nil {
		r.Hello, r.Events = &wire.Hello{Positions: positions}, transport.EventsOf(positions)
	}
	return s, r, err
}

// continueEvents returns the session to continue, which the URL or the last event names.
func (a *App) continueEvents(c *Caller, e *eventRequest) (*session.Session, error) {
	s, err := a.sessionToReceive(c, limit.Polls, cmp.Or(e.session, e.had.Session))
	switch {
	case err != nil:
		return nil, err
	case e.had.Session == "" && s.Acks():
		return nil, ackMissing()
	case e.session == "" && !s.Acks():
		return nil, errSessionUnknown // it keeps nothing to continue with
	}
	return s, s.CheckAck(e.had.Count)
}

// resumeEvents makes the topics begin after the client's last event.
func (a *App) resumeEvents(c *Caller, e *eventRequest) error {
	named := e.Topics
	if e.had.Session != "" && len(named)+len(e.had.Positions) > a.cfg.Sessions.Config().MostNamed()/2 { // of two lists
		e.had.Positions = nil // too many: a refusal would stop the EventSource for good
	}
	e.Topics = resume(named, e.had)
	return a.mayCreate(c, slices.DeleteFunc(slices.Clone(e.Topics[len(named):]), a.areAnnounced(named)))
}

// resume makes topics begin after the client's last event. A topic that the event does not
// name begins as requested. A topic that only the event names is added if one of the
// patterns matches it, and otherwise ignored.
func resume(topics []wire.Start, had transport.EventID) []wire.Start {
	named := topics
	for i, start := range named {
		if had.Session != "" && len(had.Positions) == 0 { // the session has ended, or cannot resume there
			topics[i] = after(wire.Position{Topic: start.Topic, Epoch: noEpoch}, start)
		}
	}
	for _, p := range had.Positions {
		if i := slices.IndexFunc(named, func(s wire.Start) bool { return s.Topic == p.Topic }); i >= 0 {
			topics[i] = after(p, topics[i])
		} else if i := slices.IndexFunc(named, func(s wire.Start) bool { return covers(s, p.Topic) }); i >= 0 {
			topics = append(topics, after(p, topics[i]))
		}
	}
	return topics
}

// after returns a start after a position, with the rate of another start.
func after(p wire.Position, start wire.Start) wire.Start {
	from := wire.StartAfter(p)
	from.Every = start.Every
	return from
}

// covers reports whether a start is a pattern that matches the topic.
func covers(start wire.Start, topic string) bool {
	return wire.IsPattern(start.Topic) && !wire.IsPattern(topic) && wire.Matches(start.Topic, topic)
}

// areAnnounced reports of a topic that is resumed with patterns whether one of them announces
// what the client lost of it. Then a topic that was forgotten is not created again.
func (a *App) areAnnounced(patterns []wire.Start) func(topic wire.Start) bool {
	isCurrent := func(s wire.Start) bool { return s.Epoch == a.cfg.Broker.Epoch(s.Topic) }
	return func(topic wire.Start) bool {
		return slices.ContainsFunc(patterns, func(p wire.Start) bool {
			return covers(p, topic.Topic) && p.From == wire.FromPosition && (isCurrent(topic) || !isCurrent(p))
		})
	}
}

// noEpoch is never an epoch: a position in it gets a gap, restarted, and all of history.
const noEpoch = "0"
