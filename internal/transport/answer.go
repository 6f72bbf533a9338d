package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Connection is an Answer that never blocks: it writes what its client takes at
// once and keeps the rest, which its owner flushes.
type Connection interface {
	Answer

	// Kept reports whether something is kept.
	Kept() bool

	// Wake makes the connection's owner Unpark the poll and Go on with it, or with
	// what is kept. It must not block.
	Wake()
}

// A Poller answers the polls of one connection, one after the other, in the same
// memory: nothing is allocated per poll.
//
// It belongs to the connection's owner, one goroutine at a time, but for HandOver
// and Wake: they come from fan-outs and the sweep, under the lock of the session
// whose poll is parked, and while it is, the connection is theirs to write to.
type Poller struct {
	server *Server
	to     Connection
	direct bool // parks on the connection; else on the session's queue

	poll   session.Poll
	meter  *meter
	mode   Mode
	format frame.Format
	events *Events
	ahead  bool // requests wait behind this one
	begun  bool // a part of an answer that ends, of unknown length, was written
	more   bool // and there may be another
	limit  broker.Limit
	now    time.Time // when the poll began, for its first taking: reading the clock costs, too
	until  time.Time // when a long poll is answered empty or, once begun, an answer in parts ends
	lead   []byte    // hello, which goes before the frames and does not wait for them
}

// A State is what became of a poll.
type State uint8

const (
	// Over says that its answer is complete, or that there is none.
	Over State = iota
	// Parked says that it waits on its connection.
	Parked
	// Waiting says that there is nothing for it, and that Wait is to be called.
	Waiting
	// GoesOn says that a part was written, and that there may be more once what the
	// connection keeps is flushed.
	GoesOn
)

// Init makes p a poller of to. With direct, polls park on the connection; see
// session.Outlet.
func (p *Poller) Init(server *Server, to Connection, direct bool) {
	p.server, p.to, p.direct = server, to, direct
}

// Poll begins a poll. The error is a *wire.Problem; then nothing was touched.
func (p *Poller) Poll(s *session.Session, r Request) error {
	now := time.Now()
	p.now = now
	p.mode, p.format, p.events, p.begun = r.Mode, r.Format, r.Events, false
	p.meter = p.server.meters[r.via()]
	if err := p.poll.Begin(s, r.Ack, r.trusts(), now); err != nil {
		p.meter.Polled(outcomeOf(err))
		return err
	}
	if r.Acks {
		p.poll.HearAcks()
	}
	if r.Events.refer() {
		p.poll.Slide()
	}
	p.lead = nil
	if r.Hello != nil {
		r.Hello.Limits = &p.server.config().limits
		p.lead = p.events.hello(p.format, r.Hello)
	} else if p.mode == Stream {
		p.lead = p.events.hello(p.format, &wire.Hello{Positions: p.poll.Hello(), Session: s.ID(), Limits: &p.server.config().limits})
	}
	cfg := p.server.config()
	p.until = now.Add(cfg.PollTimeout)
	p.limit = cfg.limitOf(r)
	return nil
}

// Go goes on with the poll, without blocking: it writes what is there, once, or
// parks. An error comes with Over if the answer has to be another, a
// *wire.Problem, or the client is gone. While ahead, requests wait behind this one,
// and the connection is woken when it is over.
func (p *Poller) Go(ahead bool) (State, error) {
	p.ahead = ahead
	if p.begun && !p.more {
		p.Done(outcomeFrames)
		return Over, nil
	}
	frames, state, err := p.take()
	if err == nil && state != Over {
		return state, nil
	}
	return p.answer(frames, err)
}

// Wait waits on the session's queue, until there is something or ctx, which is the
// client's being there, is done. Then it is as Go.
func (p *Poller) Wait(ctx context.Context) (State, error) {
	wait := p.patience(time.Now())
	if p.direct && p.mode == Stream {
		wait = 0 // another poll was at it: now it can park on its connection
	}
	p.meter.parked.Add(1)
	frames, err := p.poll.Take(ctx, p.limit, wait)
	p.meter.parked.Add(-1)
	return p.answer(frames, err)
}

// take returns what is there, or where the poll waits, or Over if it has waited
// long enough.
func (p *Poller) take() (frames []*frame.Frame, state State, err error) {
	now := p.now
	if p.now = (time.Time{}); now.IsZero() {
		now = time.Now()
	}
	var to session.Outlet
	if p.direct && !p.begun {
		to = p
		p.meter.parked.Add(1)
	}
	frames, became, err := p.poll.TakeOrPark(to, p.limit, p.patience(now), now)
	if to != nil && became != session.DidPark {
		p.meter.parked.Add(-1)
	}
	switch became {
	case session.DidPark:
		return nil, Parked, nil
	case session.MustWait:
		return nil, Waiting, nil
	}
	return frames, Over, err
}

// answer writes what was taken, or ends the poll with err.
func (p *Poller) answer(frames []*frame.Frame, err error) (State, error) {
	var n int
	if err == nil {
		n, err = p.write(frames)
	}
	if err != nil {
		p.Done(outcomeOf(err))
		return Over, err
	}
	p.wrote(frames, n)
	if p.more = p.goesOn(frames, n); p.more {
		return GoesOn, nil
	}
	p.Done(p.outcome(frames))
	return Over, nil
}

// goesOn reports whether more of the answer may come, after a part of so many bytes.
func (p *Poller) goesOn(frames []*frame.Frame, n int) bool {
	if p.mode == Multiple {
		p.limit.Bytes -= n
		return p.begun && len(frames) > 0 && p.limit.Bytes > 0 && time.Now().Before(p.until)
	}
	return p.mode == Stream
}

// patience is how long the poll waits for what comes next.
func (p *Poller) patience(now time.Time) time.Duration {
	switch {
	case len(p.lead) > 0:
		return 0
	case p.mode == Stream:
		return p.server.config().Heartbeat
	case p.begun:
		return min(p.server.config().MaxOutputDelay, p.until.Sub(now))
	}
	return p.until.Sub(now)
}

// write writes one answer, or one part of it.
func (p *Poller) write(frames []*frame.Frame) (int, error) {
	lead := p.lead
	p.lead = nil
	switch {
	case p.mode == Stream && len(lead)+len(frames) == 0:
		lead = p.format.Heartbeat()
	case p.begun && len(frames) == 0:
		return 0, nil // nothing more came
	case p.mode == Multiple && len(lead)+len(frames) > 0:
		p.begin()
	case p.mode != Stream:
		return p.to.Whole(lead, frames)
	}
	return p.events.send(p.to, lead, frames)
}

// begin begins an answer that leaves at once and stays open for more.
func (p *Poller) begin() {
	if !p.begun {
		p.begun = true
		p.until = time.Now().Add(p.server.config().MultipleTime)
	}
}

// HandOver implements session.Outlet. An error means that the client is gone, which
// is for the connection's owner to see.
func (p *Poller) HandOver(frames []*frame.Frame) session.HandedOver {
	n, err := p.write(frames)
	outcome := outcomeGone
	if err == nil {
		outcome = p.outcome(frames)
		p.wrote(frames, n)
		p.waited(frames)
	}
	p.more = p.goesOn(frames, n)
	stuck := err != nil || p.to.Kept()
	switch {
	case p.begun: // its owner goes on with it: what comes next is waited for in fractions of a sweep
		return session.Stuck
	case !p.more:
		p.meter.parked.Add(-1)
		p.meter.Polled(outcome)
		if stuck || p.ahead {
			p.to.Wake()
		}
		return session.Answered
	case stuck:
		return session.Stuck
	}
	return session.Parked
}

// Wake implements session.Outlet.
func (p *Poller) Wake() {
	p.meter.parked.Add(-1)
	p.to.Wake()
}

// Unpark takes a poll back from its connection, because its client was heard of or
// the connection was woken. over says that its answer was handed over, and the
// poll is done.
func (p *Poller) Unpark() (over bool) {
	over, woken := p.poll.Unpark()
	if !over && !woken {
		p.meter.parked.Add(-1)
	}
	return over
}

// IsParked reports whether a poll that has parked still is.
func (p *Poller) IsParked() bool { return p.poll.IsParked() }

// Done ends a poll that is not over.
func (p *Poller) Done(outcome string) {
	p.poll.Done(time.Now())
	p.meter.Polled(outcome)
}

// Gone is Done because the client left.
func (p *Poller) Gone() { p.Done(outcomeGone) }

// outcome is that of a poll whose last part has these frames.
func (p *Poller) outcome(frames []*frame.Frame) string {
	if len(frames) == 0 && !p.begun {
		return outcomeEmpty
	}
	return outcomeFrames
}

func (p *Poller) wrote(frames []*frame.Frame, n int) {
	if len(frames) == 0 {
		return
	}
	p.meter.Wrote(len(frames), n)
	if p.poll.Fresh() {
		p.waited(frames)
	}
}

// waited times a sample of the answers that were waited for.
func (p *Poller) waited(frames []*frame.Frame) {
	if len(frames) > 0 && frames[0].Gap() == nil && rand.Uint32()%latencySample == 0 {
		p.meter.Waited(time.Since(frames[0].Accepted()))
	}
}

// EndStream tells a stream why it ends, if err is for the client.
func (p *Poller) EndStream(err error) error {
	problem, ok := errors.AsType[*wire.Problem](err)
	if !ok {
		return err
	}
	_, err = p.to.Send(p.events.end(p.format, problem.Spread()), nil)
	return err
}
