package app

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Poll returns the session with an id, and what to answer to a poll. known is the session of the
// connection's last poll, which probably has the id, or nil. Poll waits only if the signature of the
// caller's token is to be checked; see Recognise. If the session has ended, its poll fails.
func (a *App) Poll(ctx context.Context, c Caller, id []byte, known *session.Session, p request.Poll) (s *session.Session, r transport.Request, err error) {
	defer a.recovered(&err)
	if err := a.admit(ctx, &c, limit.Polls); err != nil {
		return nil, r, err
	}
	if s = known; s == nil || s.ID() != string(id) {
		if s, err = a.session(&c, id); err != nil {
			return nil, r, err
		}
	}
	if err := a.mayReceive(&c, limit.Polls, s); err != nil {
		return nil, r, err
	}
	switch {
	case p.Fault != nil:
		return nil, r, p.Fault
	case !s.Acks():
		p.Ack = 0
	case !p.HasAck:
		return nil, r, ackMissing()
	}
	return s, p.Request, nil
}

func ackMissing() *wire.Problem {
	return problem.New(wire.CodeInvalidRequest,
		`add ack=K, the number of frames you have received (0 at first), or open the session with "ack":false`, "ack is missing")
}

// Poll opens a session for one poll, and returns what to answer. End the session after the poll.
func (o *Opening) Poll(p request.TopicPoll) (s *session.Session, r transport.Request, err error) {
	defer o.app.recovered(&err)
	if p.Fault != nil {
		return nil, r, p.Fault
	}
	r = p.Answer
	if p.Open.Brief = r.Mode != transport.Stream; !p.Open.Brief { // a poll that ends soon is not listed
		p.Open.Peer = o.caller.peer("stream")
	}
	if err := o.check(&p.Open); err != nil {
		return nil, r, err
	}
	s, positions, err := o.app.cfg.Sessions.OpenEphemeral(p.Open, time.Now())
	if err == nil && r.Mode == transport.Single && s.Unfollowed() > 0 {
		o.app.cfg.Sessions.End(s)
		return nil, r, problem.New(wire.CodeTooManySubscriptions, "use mode=batch, a session, or narrower patterns",
			"the patterns match more topics than fit, and a poll in mode single has no place for the gap that says so")
	}
	if p.Hello {
		r.Hello = &wire.Hello{Positions: positions}
	}
	return s, r, err
}

// Events opens the session of an event stream, or finds the one to continue, and returns what to
// answer. If session.ClosedByClient holds for the error, the client has ended the stream. End the
// session after the stream.
func (o *Opening) Events(e request.Events) (s *session.Session, r transport.Request, err error) {
	defer o.app.recovered(&err)
	if e.Fault != nil {
		return nil, r, e.Fault
	}
	if err := o.check(&e.Open); err != nil {
		return nil, r, err
	}
	if s, r, err = o.events(&e); err == nil && e.HeartbeatEvents {
		r.Events.SendHeartbeatEvents()
	}
	return s, r, err
}

func (o *Opening) events(e *request.Events) (*session.Session, transport.Request, error) {
	a, c := o.app, &o.caller
	r := transport.Request{Mode: transport.Stream, Format: frame.EventStream}
	if e.Session != "" || e.Had.Session != "" {
		s, err := a.continueEvents(c, e)
		if err == nil {
			r.Ack, r.Events = e.Had.Count, transport.EventsReferringTo(s, e.Had.Count, e.Session == "")
			if e.Session == "" { // otherwise ids have no positions
				r.LeftOut = a.leftOut(s, e.Had.Positions)
			}
		}
		if err == nil || e.Session != "" || session.ClosedByClient(err) {
			return s, r, err
		}
	}
	// The topics begin after the client's last event.
	named := e.Open.Topics
	if e.Had.Session != "" && len(named)+len(e.Had.Positions) > a.cfg.Sessions.Config().MostNamed()/2 { // of two lists
		e.Had.Positions = nil // too many: a refusal would stop the EventSource for good
	}
	e.Open.Topics = resume(named, e.Had)
	// Of a topic that is resumed with patterns, one of them may announce what the client lost. Then a
	// topic that was forgotten is not created again.
	fresh := slices.DeleteFunc(slices.Clone(e.Open.Topics[len(named):]), func(topic wire.Start) bool {
		return slices.ContainsFunc(named, func(p wire.Start) bool {
			return covers(p, topic.Topic) && p.From == wire.FromPosition && a.cfg.Broker.Covers(p, topic)
		})
	})
	if err := a.mayCreate(c, fresh); err != nil {
		return nil, r, err
	}
	if transport.NeedSession(e.Open.Topics) {
		if err := a.cfg.Limiter.Admit(limit.Sessions, 1, c.Who); err != nil {
			return nil, r, err
		}
		e.Open.Ack = true
		s, positions, err := o.open(e.Open)
		if err == nil {
			r.Events = transport.EventsReferringTo(s, 0, true)
			r.LeftOut = a.leftOut(s, positions)
		}
		return s, r, err
	}
	e.Open.Peer = c.peer("sse")
	s, positions, err := a.cfg.Sessions.OpenEphemeral(e.Open, time.Now())
	if err == nil {
		r.Hello, r.Events = &wire.Hello{Positions: positions}, transport.EventsOf(positions)
	}
	return s, r, err
}

// leftOut returns those of positions, which it overwrites, that a session may leave out: of topics
// that are forbidden to its principal, or were. An open session does not take these back.
func (a *App) leftOut(s *session.Session, positions []wire.Position) []wire.Position {
	forbidden := a.cfg.Revocations.Forbidden(s.Grant().Subject)
	return slices.DeleteFunc(positions, func(at wire.Position) bool {
		return forbidden.Find(at.Topic) == nil && !a.cfg.Broker.Has(at.Topic) // forgotten: its next message is new
	})
}

// continueEvents returns the session to continue, which the URL or the last event names.
func (a *App) continueEvents(c *Caller, e *request.Events) (*session.Session, error) {
	s, err := a.sessionToReceive(c, limit.Polls, cmp.Or(e.Session, e.Had.Session))
	switch {
	case err != nil:
		return nil, err
	case e.Had.Session == "" && s.Acks():
		return nil, ackMissing()
	case e.Session == "" && !s.Acks():
		return nil, errSessionUnknown // it keeps nothing to continue with
	}
	return s, s.CheckAck(e.Had.Count)
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

// noEpoch is never an epoch: a position in it gets a gap, restarted, and all of history.
const noEpoch = "0"
