package transport

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Parking is a Sink that never blocks. It writes the bytes that its client takes at once,
// and keeps the rest, which its owner flushes. Polls can park on it.
type Parking interface {
	Sink

	// Blocked reports whether written bytes still wait for the client.
	Blocked() bool

	// Deflates reports whether frames of a whole answer, or of a part, may be deflated.
	Deflates(whole bool) bool

	// Wake makes the owner flush, or call Unpark and then Go. It must not block.
	Wake()
}

// An Answer answers the polls of one connection, one after the other, in the same memory,
// so that a poll allocates nothing. It is the only engine for every mode. A goroutine that
// may block calls Run. An event loop calls Go, and Wait in a goroutine.
//
// The owner of the Sink owns the Answer. While the poll is parked, the session owns the
// Sink instead, and calls HandOver and Wake under its lock.
type Answer struct {
	server *Server
	to     Sink
	lot    Parking // to; nil: polls park a goroutine on the session's queue

	poll   session.Reader
	meter  *metrics.Transport
	mode   Mode
	format frame.Format
	events *Events
	ahead  bool // requests wait behind this one
	begun  bool // the first part of an answer in mode multiple was written
	more   bool // another part may follow
	taken  bool // Go has taken frames that Wait writes
	first  bool // Go was not called yet, and begin is still about now
	limit  frame.Limit
	begin  time.Duration // when the poll began, after server.made; saves reading the clock
	until  time.Duration // after server.made; when a long poll ends empty or, once begun, an answer in parts ends
	hello  *wire.Hello   // precedes the frames and does not wait for them; nil: none, or it was written
}

// Init makes a an Answer to sink. With park, sink is a Parking, and polls park on it; see
// session.Outlet.
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
	if err := a.poll.Begin(s, r.Ack, r.acking(), r.Arrival, now); err != nil {
		a.polled(outcomeOf(err))
		return err
	}
	cfg := a.server.config()
	a.hello = r.Hello
	if a.hello == nil && a.mode == Stream {
		a.hello = &wire.Hello{Positions: withLeftOut(a.poll.Hello(), r.LeftOut), Session: s.ID()}
		a.events.begin(a.hello.Positions)
	}
	if a.hello != nil {
		a.hello.Limits, a.hello.ExpiresMS, a.hello.Unfollowed = &cfg.limits, s.Grant().ExpiresMS(now), s.Unfollowed()
	}
	a.until = a.begin + cfg.PollTimeout
	// In mode multiple the bytes bound the whole answer, and the client reads the first part while
	// the next is taken. Events that are composed for one client are copies, and wait if it does
	// not read, so their parts are small.
	a.limit = frame.Limit{Frames: cfg.AnswerFrames, Bytes: cfg.AnswerBytes}
	switch {
	case r.Mode == Single:
		a.limit = frame.Limit{Frames: 1, Bytes: math.MaxInt}
	case r.Events != nil && !r.Events.areShared():
		a.limit = frame.Limit{Frames: min(cfg.AnswerFrames, composedFrames), Bytes: min(cfg.AnswerBytes, composedBytes)}
	}
	return nil
}

// withLeftOut appends to the positions of a session those of the positions left that it does not
// have, and that one of its patterns matches.
func withLeftOut(has, left []wire.Position) []wire.Position {
	if len(left) == 0 { // Fast path: most streams
		return has
	}
	named := make(map[string]bool, len(has))
	var patterns []string
	for _, p := range has {
		if named[p.Topic] = true; wire.IsPattern(p.Topic) {
			patterns = append(patterns, p.Topic)
		}
	}
	for _, at := range left {
		if !named[at.Topic] && slices.ContainsFunc(patterns, func(name string) bool { return wire.Matches(name, at.Topic) }) {
			has = append(has, at)
		}
	}
	return has
}

// Run answers a poll that has begun. The caller's goroutine waits on the session's queue.
// An error means that nothing was written: a *wire.Problem is for the client; any other
// error means that the client has left. Once the answer has begun, Run sends a problem as
// an end frame instead.
func (a *Answer) Run(ctx context.Context) error {
	err := a.finish(ctx)
	if err != nil && (a.mode == Stream || a.begun) {
		_ = a.EndStream(err) // if this fails, the client has left
		return nil
	}
	return err
}

// finish is Run without the end frame.
func (a *Answer) finish(ctx context.Context) error {
	state, err := a.Go(false)
	for state != session.Over {
		if state == session.Waiting {
			state, err = a.Wait(ctx)
		} else {
			state, err = a.Go(false)
		}
	}
	return err
}

// Go continues the poll without blocking: it writes the frames that the session has, once,
// or parks. An error comes with Over: a *wire.Problem is for the client; any other error
// means that the client has left. It returns Waiting if it takes too long to encode the
// frames; then Wait must follow. ahead says that more requests wait, so that the end of a
// parked poll must wake the sink.
func (a *Answer) Go(ahead bool) (session.State, error) {
	a.ahead = ahead
	if a.begun && !a.more {
		a.done(outcomeFrames)
		return session.Over, nil
	}
	now := a.server.made.Add(a.begin)
	if !a.first {
		now = time.Now()
	}
	a.first = false
	var to session.Outlet
	if a.lot != nil && !a.begun {
		to = a
		a.meter.Parked.Add(1)
	}
	frames, state, err := a.poll.TakeOrPark(to, a.limit, a.patience(now), now)
	if to != nil && state != session.Parked {
		a.meter.Parked.Add(-1)
	}
	switch {
	case state != session.Over:
		return state, nil
	case err == nil && a.takesLong(frames):
		a.taken = true
		return session.Waiting, nil
	}
	return a.answer(frames, err)
}

// quickBytes is how many bytes of messages Go encodes and deflates.
const quickBytes = 64 << 10

// takesLong reports whether encoding frames takes too long for an event loop.
func (a *Answer) takesLong(frames []*frame.Frame) bool {
	bytes := 0
	for _, f := range frames {
		bytes += f.Size()
	}
	if bytes <= quickBytes { // Fast path: most answers.
		return false
	}
	e := a.Encoding()
	for _, f := range frames {
		if f.IsEncoded(e.Format, e.DeflateFrom) { // for others
			bytes -= f.Size()
		}
	}
	return bytes > quickBytes
}

// Wait waits on the session's queue for frames, the poll's timeout, or the end of ctx,
// which means that the client has left. Then it does what Go does, with any frames. If Go has
// taken frames, it writes these.
func (a *Answer) Wait(ctx context.Context) (session.State, error) {
	if a.taken {
		a.taken = false
		return a.answer(a.poll.Taken(), nil)
	}
	wait := a.patience(time.Now())
	if a.lot != nil && a.mode == Stream {
		wait = 0 // it can park now: another poll was taking frames before
	}
	a.meter.Parked.Add(1)
	frames, err := a.poll.Take(ctx, a.limit, wait)
	a.meter.Parked.Add(-1)
	return a.answer(frames, err)
}

// answer writes frames, or ends the poll with err.
func (a *Answer) answer(frames []*frame.Frame, err error) (session.State, error) {
	var outcome string
	if err != nil {
		outcome = outcomeOf(err)
	} else {
		if a.isWhole(frames) {
			frames = a.poll.WithMoved(frames)
		}
		if outcome, err = a.deliver(frames, a.poll.Fresh()); err == nil && a.more {
			return session.Continues, nil
		}
	}
	a.done(outcome)
	return session.Over, err
}

// isWhole reports whether an answer with these frames has no other part.
func (a *Answer) isWhole(frames []*frame.Frame) bool {
	return a.mode == Single || a.mode == Batch || a.mode == Multiple && !a.begun && a.hello == nil && len(frames) == 0
}

// deliver writes frames and counts them. If the poll waited for them, it measures the latency
// of some. It notes whether another part may follow, and returns the outcome of the poll if
// none does.
func (a *Answer) deliver(frames []*frame.Frame, waited bool) (outcome string, err error) {
	n, err := a.write(frames)
	counted := frame.Counted(frames)
	a.more = a.mode == Stream
	if a.mode == Multiple {
		a.limit.Bytes -= n
		a.more = a.begun && counted > 0 && a.limit.Bytes > 0 && time.Since(a.server.made) < a.until
	}
	switch {
	case err != nil:
		return outcomeOf(err), err
	case counted > 0:
		a.meter.Frames.Add(float64(counted))
		a.meter.Bytes.Add(float64(n))
		a.meter.FramesPerAnswer.Observe(float64(counted))
	case !a.begun:
		return outcomeEmpty, nil
	}
	if waited && counted > 0 && frames[0].Gap() == nil {
		accepted := frames[0].Accepted
		if rand.Uint32()%latencySample == 0 {
			a.meter.PublishToWrite.Observe(time.Since(accepted).Seconds())
		}
		// A message that was accepted before the poll or stream began came from the history.
		if a.server.traces != nil && accepted.After(a.server.made.Add(a.begin)) {
			a.server.traces.Delivered(frames[0].Position(), accepted, a.meter.Name)
		}
	}
	return outcomeFrames, nil
}

// latencySample is of how many writes one is measured. Reading the clock for each write
// would show in a broadcast's profile.
const latencySample = 16

// patience returns how long the poll waits for the next frames.
func (a *Answer) patience(now time.Time) time.Duration {
	switch {
	case a.hello != nil:
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
	var lead []byte
	if hello := a.hello; hello != nil {
		a.hello = nil
		if a.mode == Single || a.mode == Batch { // no other part follows; some clients cannot see a cut
			hello.Frames = new(frame.Counted(frames))
		}
		lead = a.events.edge(a.format, wire.Content{Hello: hello})
	}
	switch {
	case a.mode == Stream && len(lead)+len(frames) == 0:
		lead = a.events.heartbeat(a.format)
	case a.begun && len(frames) == 0:
		return 0, nil // no other part
	case a.begun:
	case a.mode == Multiple && len(lead)+frame.Counted(frames) > 0: // the first part goes at once, and the answer stays open
		a.begun = true
		a.until = time.Since(a.server.made) + a.server.config().MultipleTime
	case a.mode != Stream:
		return a.to.Whole(lead, frames)
	}
	if len(frames) > 0 {
		a.events.advance(a.poll.Patterns())
	}
	return a.events.send(a.to, lead, frames)
}

// HandOver implements session.Outlet. The sink's owner handles a failed write.
func (a *Answer) HandOver(frames []*frame.Frame) session.State {
	outcome, err := a.deliver(frames, true)
	stuck := err != nil || a.lot.Blocked()
	switch {
	case a.begun: // the owner waits for the next part: sessions sweep too seldom to time it
		return session.Continues
	case !a.more:
		a.meter.Parked.Add(-1)
		a.polled(outcome)
		if stuck || a.ahead {
			a.lot.Wake()
		}
		return session.Over
	case stuck:
		return session.Continues
	}
	return session.Parked
}

// Encoding implements session.Outlet.
func (a *Answer) Encoding() session.Encoding {
	e := session.Encoding{Format: a.format.OffSocket(), DeflateFrom: -1}
	if p, ok := a.to.(Parking); ok && p.Deflates(a.mode == Single || a.mode == Batch) {
		e.DeflateFrom = a.server.config().CompressionMinBytes
	}
	return e
}

// Wake implements session.Outlet.
func (a *Answer) Wake() {
	a.meter.Parked.Add(-1)
	a.lot.Wake()
}

// Unpark takes a parked poll back from its session. over: the session has handed over the
// whole answer, and the poll is done.
func (a *Answer) Unpark() (over bool) {
	over, woken := a.poll.Unpark()
	if !over && !woken {
		a.meter.Parked.Add(-1)
	}
	return over
}

// IsParked reports whether a parked poll is still parked.
func (a *Answer) IsParked() bool { return a.poll.IsParked() }

// Abandon ends a poll that is not over because the client left.
func (a *Answer) Abandon() { a.done(outcomeGone) }

// done ends a poll that is not over. Moved positions are the last part of an answer in parts.
func (a *Answer) done(outcome string) {
	if (a.begun || a.mode == Stream) && a.hello == nil && outcome != outcomeGone {
		if moved := a.poll.WithMoved(nil); moved != nil {
			_, _ = a.events.send(a.to, nil, moved) // if this fails, the client has left
		}
	}
	a.poll.Done(time.Now())
	a.polled(outcome)
}

// polled counts a poll.
func (a *Answer) polled(outcome string) {
	if outcome == outcomeFrames {
		a.meter.Answered.Inc() // without looking it up
		return
	}
	a.meter.Polls.WithLabelValues(outcome).Inc()
}

// Forget drops references to the session of the last poll, which has ended. Its memory counts no
// more, but a connection may be idle for long.
func (a *Answer) Forget() {
	a.poll.Forget()
	a.events, a.hello = nil, nil
}

// EndStream writes the end frame of an answer in parts, if err is a *wire.Problem;
// otherwise it returns err.
func (a *Answer) EndStream(err error) error {
	problem, ok := errors.AsType[*wire.Problem](err)
	if !ok {
		return err
	}
	_, err = a.to.Send(a.events.edge(a.format, wire.Content{End: limit.Spread(problem)}), nil)
	return err
}
