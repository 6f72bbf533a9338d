package app

import (
	"bytes"
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Poll is a session's poll as a request has it.
type Poll struct {
	Session []byte           // the id
	Known   *session.Session // may have the id; nil: none is known
	Query   []byte           // as it came
	Accepts Accepts
}

// Poll returns the session of a poll, and what to answer. It does not check whether the
// session has ended: that is for the session, when it is polled. Nor does it allocate
// for a client that only acks. It never waits.
func (a *App) Poll(c Caller, p Poll) (s *session.Session, r transport.Request, err error) {
	defer a.recovered(&err)
	if err := a.admit(&c, limit.Polls); err != nil {
		return nil, r, err
	}
	s = p.Known
	if s == nil || s.ID() != string(p.Session) {
		if s, err = a.session(&c, p.Session); err != nil {
			return nil, r, err
		}
	}
	// Fast path: what a client says that only polls.
	if r, ok := plainPoll(p.Query); ok && !p.Accepts.None && s.Acks() {
		r.Format, r.Gzip = p.Accepts.Format, p.Accepts.Gzip
		return s, r, nil
	}
	q, err := parseQuery(string(p.Query))
	if err != nil {
		return nil, r, err
	}
	if r, err = pollRequest(q, s); err != nil {
		return nil, r, err
	}
	r.Gzip = p.Accepts.Gzip
	r.Format, err = formatOf(q, p.Accepts)
	return s, r, err
}

// plainPoll reads "ack=K&mode=M", in which nothing is escaped; anything else is for
// the full reading.
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

func pollRequest(q url.Values, s *session.Session) (transport.Request, error) {
	mode, err := modeOf(q)
	if err != nil || !s.Acks() {
		return transport.Request{Mode: mode}, err
	}
	if !q.Has("ack") {
		return transport.Request{}, ackMissing()
	}
	ack, err := number(q, "ack", 0, maxAck, 0)
	return transport.Request{Ack: ack, Mode: mode}, err
}

func ackMissing() *wire.Problem {
	return wire.NewProblem(wire.CodeInvalidRequest,
		`say ack=K, the number of frames you have had (0 at first), or open the session with "ack":false`, "ack is missing")
}

func modeOf(q url.Values) (transport.Mode, error) {
	text, err := one(q, "mode")
	switch {
	case err != nil:
		return "", err
	case text == "":
		return transport.Batch, nil
	case slices.Contains(transport.Modes(), transport.Mode(text)):
		return transport.Mode(text), nil
	}
	return "", wire.NewProblem(wire.CodeInvalidRequest, "use single, batch, multiple or stream", "there is no mode %s", wire.Quote(text))
}

// A TopicPoll is a poll without a session as a request has it.
type TopicPoll struct {
	Query   string // as it came
	Body    Body   // has the topics; nil: the query has them
	Accepts Accepts
}

// PollTopics opens a session for one poll, which must End, and returns what to answer.
func (a *App) PollTopics(ctx context.Context, c Caller, p TopicPoll) (s *session.Session, r transport.Request, err error) {
	defer a.recovered(&err)
	if why := a.cfg.Sessions.Draining(); why != nil {
		return nil, r, why
	}
	q, badQuery := parseQuery(p.Query)
	topics, badTopic := topicsOf(q)
	if ctx.Err() != nil && slices.ContainsFunc(topics, isPattern) {
		return nil, r, ErrWouldWait // to look for its topics may take long
	}
	if err := a.admit(&c, limit.Polls); err != nil {
		return nil, r, err
	}
	if p.Body != nil {
		var body struct {
			Topics []wire.Start `json:"topics"`
		}
		badTopic = readJSON(p.Body, &body)
		topics = body.Topics
	}
	for _, err := range []error{badQuery, badTopic} {
		if err != nil {
			return nil, r, err
		}
	}
	return a.pollTopics(&c, q, topics, p.Accepts)
}

func isPattern(start wire.Start) bool { return wire.IsPattern(start.Topic) }

func (a *App) pollTopics(c *Caller, q url.Values, topics []wire.Start, accepts Accepts) (*session.Session, transport.Request, error) {
	if len(topics) == 0 {
		return nil, transport.Request{}, noTopic("the poll")
	}
	r, hello, err := topicPollRequest(q, accepts)
	if err != nil {
		return nil, r, err
	}
	o := session.Opening{Topics: topics}
	if o.NoEcho, err = exceptOfQuery(q); err != nil {
		return nil, r, err
	}
	if err := limitRate(q, topics, r.Mode); err != nil {
		return nil, r, err
	}
	if err := a.maySubscribe(c, topics); err != nil {
		return nil, r, err
	}
	s, positions, err := a.cfg.Sessions.OpenEphemeral(o, time.Now())
	if r.Mode == transport.Stream || hello || slices.ContainsFunc(topics, withoutPosition) {
		r.Hello = &wire.Hello{Positions: positions}
	}
	return s, r, err
}

func topicPollRequest(q url.Values, accepts Accepts) (r transport.Request, hello bool, err error) {
	r.Gzip = accepts.Gzip
	if r.Mode, err = modeOf(q); err != nil {
		return r, false, err
	}
	if r.Format, err = formatOf(q, accepts); err != nil {
		return r, false, err
	}
	hello, err = truth(q, "hello", false)
	return r, hello, err
}

// withoutPosition reports whether the client must be told where a topic begins, before
// anything else.
func withoutPosition(start wire.Start) bool { return start.From != wire.FromPosition }

func noTopic(what string) *wire.Problem {
	return wire.NewProblem(wire.CodeInvalidRequest, "name a topic: ?topic=prices.acme", "%s names no topic", what)
}

func topicsOf(q url.Values) ([]wire.Start, error) {
	topics := make([]wire.Start, 0, len(q["topic"]))
	for _, text := range q["topic"] {
		start, err := wire.ParseStart(text)
		if err != nil {
			return nil, unreadable(err)
		}
		topics = append(topics, start)
	}
	return topics, nil
}

// exceptOf returns the client whose messages a subscriber is not sent: its own, if
// echo is false.
func exceptOf(client string, echo bool) (string, error) {
	if client != "" {
		if err := checkClient(client); err != nil {
			return "", err
		}
	}
	switch {
	case echo:
		return "", nil
	case client == "":
		return "", wire.NewProblem(wire.CodeInvalidRequest, "say client, the id that you publish with", "echo is false, but whose messages are your own is not said")
	}
	return client, nil
}

func exceptOfQuery(q url.Values) (string, error) {
	client, err := one(q, "client")
	if err != nil {
		return "", err
	}
	echo, err := truth(q, "echo", true)
	if err != nil {
		return "", err
	}
	return exceptOf(client, echo)
}

// limitRate gives each topic the max_rate in the query, if there is one. Only a stream
// lasts long enough for it.
func limitRate(q url.Values, topics []wire.Start, mode transport.Mode) error {
	rate, err := one(q, "max_rate")
	if err != nil {
		return err
	}
	if rate != "" {
		every, err := wire.ParseRate(rate)
		if err != nil {
			return unreadable(err)
		}
		for i := range topics {
			topics[i].Every = every
		}
	}
	if mode != transport.Stream && slices.ContainsFunc(topics, func(s wire.Start) bool { return s.Every > 0 }) {
		return wire.NewProblem(wire.CodeInvalidRequest, "say mode=stream, or open a session", "max_rate has no meaning for a poll that ends")
	}
	return nil
}

// An EventStream is what an EventSource asks for.
type EventStream struct {
	Query       string   // as it came
	LastEventID []string // the header's values
}

// OpenEvents opens the session of an event stream, or finds the one that it goes on
// with, and returns what to answer. An error for which session.ClosedByClient holds is
// the end of the stream, and no failure. The session must End.
func (a *App) OpenEvents(ctx context.Context, c Caller, e EventStream) (s *session.Session, r transport.Request, err error) {
	defer a.recovered(&err)
	if why := a.cfg.Sessions.Draining(); why != nil {
		return nil, r, why
	}
	if err := a.admit(&c, limit.Polls); err != nil {
		return nil, r, err
	}
	o, had, err := e.read()
	if err != nil {
		return nil, r, err
	}
	if err := a.maySubscribe(&c, o.Topics); err != nil {
		return nil, r, err
	}
	return a.openEvents(ctx, &c, o, had)
}

// read returns what to open, and the last event that the client has; zero: none.
func (e EventStream) read() (o session.Opening, had transport.EventID, err error) {
	q, err := parseQuery(e.Query)
	if err != nil {
		return o, had, err
	}
	if o.Topics, err = topicsOf(q); err != nil {
		return o, had, err
	}
	if len(o.Topics) == 0 {
		return o, had, noTopic("the stream")
	}
	if o.NoEcho, err = exceptOfQuery(q); err != nil {
		return o, had, err
	}
	if err = limitRate(q, o.Topics, transport.Stream); err != nil {
		return o, had, err
	}
	had, err = e.lastEventID(q)
	return o, had, err
}

// LastEvent returns the id of the last event that the client has; zero: it has none, or
// the id cannot be read.
func (e EventStream) LastEvent() transport.EventID {
	if q, err := parseQuery(e.Query); err == nil {
		if id, err := e.lastEventID(q); err == nil {
			return id
		}
	}
	return transport.EventID{}
}

// lastEventID reads which event a client had last. An EventSource that reconnects says
// so in a header. One that a page makes anew cannot, and says it in the query, which it
// repeats when it reconnects: the header is newer.
func (e EventStream) lastEventID(q url.Values) (transport.EventID, error) {
	text, err := one(q, "last_event_id")
	if len(e.LastEventID) > 0 && e.LastEventID[0] != "" {
		text, err = one(url.Values{"Last-Event-ID": e.LastEventID}, "Last-Event-ID")
	}
	if err != nil || text == "" {
		return transport.EventID{}, err
	}
	id, err := transport.ParseEventID(text)
	if err != nil {
		return id, wire.NewProblem(wire.CodeInvalidPosition, "say the id of an event of this stream, or nothing", "%v", err)
	}
	return id, nil
}

func (a *App) openEvents(ctx context.Context, c *Caller, o session.Opening, had transport.EventID) (*session.Session, transport.Request, error) {
	r := transport.Request{Mode: transport.Stream, Format: frame.EventStream}
	if had.Session != "" {
		s, err := a.session(c, []byte(had.Session))
		switch {
		case err == nil && s.CanResume(had.Count):
			r.Ack, r.Events = had.Count, transport.EventsReferringTo(s, had.Count)
			return s, r, nil
		case session.ClosedByClient(err):
			return nil, r, err
		}
	}
	resume(o.Topics, had)
	if transport.NeedSession(o.Topics) {
		if err := a.cfg.Limiter.Admit(limit.Sessions, c.Who); err != nil {
			return nil, r, err
		}
		o.Ack = true
		s, _, err := a.openSession(ctx, c, o)
		if err == nil {
			r.Events = transport.EventsReferringTo(s, 0)
		}
		return s, r, err
	}
	s, positions, err := a.cfg.Sessions.OpenEphemeral(o, time.Now())
	if err == nil {
		r.Hello, r.Events = &wire.Hello{Positions: positions}, transport.EventsOf(positions)
	}
	return s, r, err
}

// resume has topics go on after what the client had. Topics that its event does not name
// begin as they say. A topic that the event names and the request does not is ignored.
func resume(topics []wire.Start, had transport.EventID) {
	for i, start := range topics {
		from := start
		switch at := slices.IndexFunc(had.Positions, func(p wire.Position) bool { return p.Topic == start.Topic }); {
		case had.Session != "": // it is gone, or no longer has what followed
			from = wire.StartAfter(wire.Position{Topic: start.Topic, Epoch: noEpoch})
		case at >= 0:
			from = wire.StartAfter(had.Positions[at])
		}
		from.Every = start.Every
		topics[i] = from
	}
}

// noEpoch is the epoch of no daemon: a position in it gets a gap, restarted, and all
// that history holds.
const noEpoch = "0"
