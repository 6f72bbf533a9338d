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

// A Parking is a Sink that never blocks: it writes what its client takes at once and
// keeps the rest, which its owner flushes. Polls can park on it.
type Parking interface {
	Sink

	// Blocked reports whether written bytes still wait for the client.
	Blocked() bool

	// Wake makes the owner flush, or Unpark the poll and Go on with it. It must not
	// block.
	Wake()
}

// An Answer answers the polls of one connection, one after the other, in the same
// memory: a poll allocates nothing. It is the only engine for every mode: a
// goroutine that may block calls Run; an event loop calls Go, and Wait in a goroutine.
//
// It belongs to the owner of its Sink, except HandOver and Wake: the session calls
// these under its lock while the poll is parked, and meanwhile owns the Sink, too.
type Answer struct {
	server *Server
	to     Sink
	lot    Parking // to, or nil: polls park a goroutine on the session's queue

	poll   session.Poll
	meter  *meter
	mode   Mode
	format frame.Format
	events *Events
	ahead  bool // requests wait behind this one
	begun  bool // the first part of an answer in mode multiple was written
	more   bool // another part may follow
	first  bool // nothing was taken yet: the time is still that of begin
	limit  broker.Limit
	begin  time.Duration // when the poll began, after server.made; reading the clock costs, too
	until  time.Duration // after server.made; when a long poll ends empty or, once begun, an answer in parts ends
	lead   []byte        // hello: it goes before the frames and does not wait for them
}

// A State is the state of an answer.
type State uint8

const (
	// Over is the state of an answer that is complete, or failed.
	Over State = iota
	// Parked is the state of a poll that is parked on its Sink.
	Parked
	// Waiting asks for a call of Wait: the session has no frames.
	Waiting
	// Continues asks for a call of Go once the Sink is flushed: a part was written.
	Continues
)

// Init makes a an Answer to sink. With park, which then is a Parking, polls park on
// the sink; see session.Outlet.
func (a *Answer) Init(server *Server, sink Sink, park bool) {
	a.server, a.to, a.lot = server, sink, nil
	if park {
		a.lot = sink.(Parking)
	}
}

// Begin begins a poll. The error is a *wire.Problem; then the session is unchanged.
func (a *Answer) Begin(s *session.Session, r Request) error {
	now := time.Now()
	a.begin, a.first = now.Sub(a.server.made), true
	a.mode, a.format, a.events, a.begun, a.more = r.Mode, r.Format, r.Events, false, false
	a.meter = a.server.meters[r.via()]
	if err := a.poll.Begin(s, r.Ack, r.trusts(), r.Arrival, now); err != nil {
		a.meter.Polled(outcomeOf(err))
		return err
	}
	if r.Acks {
		a.poll.ExpectAcks()
	}
	if r.Events.refer() {
		a.poll.SlideWindow()
	}
	cfg := a.server.config()
	hello := r.Hello
	if hello == nil && a.mode == Stream {
		hello = &wire.Hello{Positions: a.poll.Hello(), Session: s.ID()}
	}
	a.lead = nil
	if hello != nil {
		hello.Limits = &cfg.limits
		a.lead = a.events.edge(a.format, wire.Content{Hello: hello})
	}
	a.until = a.begin + cfg.PollTimeout
	a.limit = cfg.limitOf(r)
	return nil
}

// Run answers a poll that has begun, in the caller's goroutine, which waits on the
// session's queue. An error means that nothing was written: a *wire.Problem for the
// client, or anything else if the client is gone. Once the answer has begun, an end
// frame carries the problem instead.
func (a *Answer) Run(ctx context.Context) error {
	err := a.finish(ctx)
	if err != nil && (a.mode == Stream || a.begun) {
		_ = a.EndStream(err) // a client that is gone misses nothing
		return nil
	}
	return err
}

// finish is Run without the end frame.
func (a *Answer) finish(ctx context.Context) error {
	state, err := a.Go(false)
	for state != Over {
		if state == Waiting {
			state, err = a.Wait(ctx)
		} else {
			state, err = a.Go(false)
		}
	}
	return err
}

// Go continues the poll without blocking: it writes what the session has, once, or
// parks. An error comes with Over: a *wire.Problem for the client, or the client is
// gone. With ahead, more requests wait, so the end of a parked poll wakes the sink.
func (a *Answer) Go(ahead bool) (State, error) {
	a.ahead = ahead
	if a.begun && !a.more {
		a.Done(outcomeFrames)
		return Over, nil
	}
	frames, state, err := a.take()
	if err == nil && state != Over {
		return state, nil
	}
	return a.answer(frames, err)
}

// Wait waits on the session's queue for frames, the poll's timeout or ctx, whose end
// says that the client is gone. Then it does what Go does.
func (a *Answer) Wait(ctx context.Context) (State, error) {
	wait := a.patience(time.Now())
	if a.lot != nil && a.mode == Stream {
		wait = 0 // another poll was taking frames: now this one can park
	}
	a.meter.parked.Add(1)
	frames, err := a.poll.Take(ctx, a.limit, wait)
	a.meter.parked.Add(-1)
	return a.answer(frames, err)
}

// take returns the session's frames, or Parked or Waiting without any, or Over if the
// poll has waited long enough.
func (a *Answer) take() (frames []*frame.Frame, state State, err error) {
	now := a.server.made.Add(a.begin)
	if !a.first {
		now = time.Now()
	}
	a.first = false
	var to session.Outlet
	if a.lot != nil && !a.begun {
		to = a
		a.meter.parked.Add(1)
	}
	frames, became, err := a.poll.TakeOrPark(to, a.limit, a.patience(now), now)
	if to != nil && became != session.DidPark {
		a.meter.parked.Add(-1)
	}
	switch became {
	case session.DidPark:
		return nil, Parked, nil
	case session.MustWait:
		return nil, Waiting, nil
	}
	return frames, Over, err
}

// answer writes frames, or ends the poll with err.
func (a *Answer) answer(frames []*frame.Frame, err error) (State, error) {
	var n int
	if err == nil {
		n, err = a.write(frames)
	}
	if err != nil {
		a.Done(outcomeOf(err))
		return Over, err
	}
	a.count(frames, n)
	if a.more = a.continues(frames, n); a.more {
		return Continues, nil
	}
	a.Done(a.outcome(frames))
	return Over, nil
}

// continues reports whether another part may follow one of n bytes of frames.
func (a *Answer) continues(frames []*frame.Frame, n int) bool {
	if a.mode == Multiple {
		a.limit.Bytes -= n
		return a.begun && len(frames) > 0 && a.limit.Bytes > 0 && time.Since(a.server.made) < a.until
	}
	return a.mode == Stream
}

// patience is how long the poll waits for the next frames.
func (a *Answer) patience(now time.Time) time.Duration {
	switch {
	case len(a.lead) > 0:
		return 0
	case a.mode == Stream:
		return a.server.config().Heartbeat
	case a.begun:
		return min(a.server.config().MaxOutputDelay, a.until-now.Sub(a.server.made))
	}
	return a.until - now.Sub(a.server.made)
}

// write writes one answer, or one part of it.
func (a *Answer) write(frames []*frame.Frame) (int, error) {
	lead := a.lead
	a.lead = nil
	switch {
	case a.mode == Stream && len(lead)+len(frames) == 0:
		lead = a.format.Heartbeat()
	case a.begun && len(frames) == 0:
		return 0, nil // nothing followed
	case a.mode == Multiple && len(lead)+len(frames) > 0:
		if !a.begun { // the first part leaves at once, and the answer stays open
			a.begun = true
			a.until = time.Since(a.server.made) + a.server.config().MultipleTime
		}
	case a.mode != Stream:
		return a.to.Whole(lead, frames)
	}
	return a.events.send(a.to, lead, frames)
}

// HandOver implements session.Outlet. If writing fails the client is gone; the sink's
// owner handles that.
func (a *Answer) HandOver(frames []*frame.Frame) session.HandedOver {
	n, err := a.write(frames)
	outcome := outcomeGone
	if err == nil {
		outcome = a.outcome(frames)
		a.count(frames, n)
		a.sampleLatency(frames)
	}
	a.more = a.continues(frames, n)
	stuck := err != nil || a.lot.Blocked()
	switch {
	case a.begun: // the next part is due within fractions of a sweep: the owner waits for it
		return session.Stuck
	case !a.more:
		a.meter.parked.Add(-1)
		a.meter.Polled(outcome)
		if stuck || a.ahead {
			a.lot.Wake()
		}
		return session.Answered
	case stuck:
		return session.Stuck
	}
	return session.Parked
}

// Wake implements session.Outlet.
func (a *Answer) Wake() {
	a.meter.parked.Add(-1)
	a.lot.Wake()
}

// Unpark takes a parked poll back from its session. over: the whole answer was handed
// over and the poll is done.
func (a *Answer) Unpark() (over bool) {
	over, woken := a.poll.Unpark()
	if !over && !woken {
		a.meter.parked.Add(-1)
	}
	return over
}

// IsParked reports whether a poll that has parked still is.
func (a *Answer) IsParked() bool { return a.poll.IsParked() }

// Done ends a poll that is not over.
func (a *Answer) Done(outcome string) {
	a.poll.Done(time.Now())
	a.meter.Polled(outcome)
}

// Abandon ends a poll that is not over because the client left.
func (a *Answer) Abandon() { a.Done(outcomeGone) }

// EndStream writes the end frame of an answer in parts, if err is a *wire.Problem;
// otherwise it returns err.
func (a *Answer) EndStream(err error) error {
	problem, ok := errors.AsType[*wire.Problem](err)
	if !ok {
		return err
	}
	_, err = a.to.Send(a.events.edge(a.format, wire.Content{End: problem.Spread()}), nil)
	return err
}

// outcome is the outcome of a poll whose last part has these frames.
func (a *Answer) outcome(frames []*frame.Frame) string {
	if len(frames) == 0 && !a.begun {
		return outcomeEmpty
	}
	return outcomeFrames
}

// count counts frames that were written.
func (a *Answer) count(frames []*frame.Frame, n int) {
	if len(frames) == 0 {
		return
	}
	a.meter.Wrote(len(frames), n)
	if a.poll.Fresh() {
		a.sampleLatency(frames)
	}
}

// sampleLatency measures how long some frames took that a waiting poll received.
func (a *Answer) sampleLatency(frames []*frame.Frame) {
	if len(frames) > 0 && frames[0].Gap() == nil && rand.Uint32()%latencySample == 0 {
		a.meter.Waited(time.Since(frames[0].Accepted()))
	}
}

// latencySample: one of so many is measured. A clock reading and a histogram for each
// write would show in a broadcast's profile.
const latencySample = 16
