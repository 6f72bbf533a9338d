package session

import (
	"context"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Poll is one request's hold on its session. It is for one goroutine at a time, which
// must call Done at the end; then it may Begin anew, on any session.
type Poll struct {
	session *Session
	arrived time.Duration  // when its request did, after session.opened; guarded by session.mu
	client  Client         // as Arrival has it; guarded by session.mu
	trust   bool           // what is taken counts as acked
	slides  bool           // see Slide; not if trust
	fresh   bool           // see Fresh; of whoever takes
	stop    chan struct{}  // closed, under session.mu, when the poll must end; nil before it parks
	why     *wire.Problem  // set before stop is closed; guarded by session.mu
	resent  int            // how many of session.unacked this poll has taken; guarded by session.mu
	acks    chan struct{}  // told of acks that make room; nil unless HearAcks
	timeout *time.Timer    // of park; made when it is first needed
	frames  []*frame.Frame // what Take returned; reused

	parking parking // see TakeOrPark
}

// An Arrival says when a poll's request arrived, and from which client.
type Arrival struct {
	At     time.Time // when the bytes of the request were read; zero: when the poll begins
	Client Client    // nil: not known
}

// A Client is the connection that a poll's answer goes to. Left reports whether the
// client has closed it. Left is called under the session's lock: it must not block and
// must not call back.
type Client interface{ Left() bool }

// Poll begins a poll that has the first ack frames of the session, and ends the
// one that is parked, if any. With trust, as streams have it, frames taken count
// as acked. The error is a *wire.Problem: stale_ack or ack_beyond_sent, and then
// nothing was touched, or the reason why the session ended.
func (s *Session) Poll(ack uint64, trust bool, now time.Time) (*Poll, error) {
	p := &Poll{}
	if err := p.Begin(s, ack, trust, Arrival{}, now); err != nil {
		return nil, err
	}
	return p, nil
}

// Begin is Session.Poll in the memory of a poll that is Done, or of a new one. Of two
// polls, the one whose request arrived later wins, unless its client has left. A poll
// that loses to the parked one gets the problem poll_replaced, or context.Canceled if
// its client has left.
func (p *Poll) Begin(s *Session, ack uint64, trust bool, a Arrival, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	if a.At.IsZero() {
		a.At = now
	}
	if err := s.mayReplaceLocked(a); err != nil {
		return err
	}
	if s.acks {
		if err := s.ackLocked(ack); err != nil {
			return err
		}
	}
	if s.poll != nil {
		s.poll.stopLocked(replacedProblem)
	}
	if p.why != nil {
		p.stop = nil // closed
	}
	p.session, p.trust, p.slides, p.why, p.resent, p.fresh = s, trust || !s.acks, false, nil, 0, false
	p.arrived, p.client, p.acks = a.At.Sub(s.opened), a.Client, nil
	p.parking.over = false
	s.poll, s.active = p, now
	return nil
}

// mayReplaceLocked returns an error if the poll that the session has, if any, must not be
// replaced by one that arrived so. A client may abandon a poll and send another on a new
// connection, and the daemon may read the two in either order.
func (s *Session) mayReplaceLocked(a Arrival) error {
	switch {
	case s.poll == nil:
		return nil
	case hasLeft(a.Client):
		return context.Canceled
	case s.poll.arrived > a.At.Sub(s.opened) && !hasLeft(s.poll.client):
		return replacedProblem
	}
	return nil
}

func hasLeft(c Client) bool { return c != nil && c.Left() }

var replacedProblem = wire.NewProblem(wire.CodePollReplaced, "do not poll again: the newer poll gets the messages",
	"a newer poll took this one's place")

// ackLocked lets go of the frames that the client has.
func (s *Session) ackLocked(ack uint64) error {
	switch {
	case ack < s.acked:
		return wire.NewProblem(wire.CodeStaleAck, "if no newer poll is yours, open a session from your positions",
			"ack=%d is below ack=%d made before", ack, s.acked)
	case ack > s.sent:
		return wire.NewProblem(wire.CodeAckBeyondSent, "ack the number of frames that this session has sent you",
			"ack=%d, but %d frames were sent", ack, s.sent)
	}
	s.letGoLocked(int(ack - s.acked))
	return nil
}

// letGoLocked counts the n oldest unacked frames as acked.
func (s *Session) letGoLocked(n int) {
	for i, f := range s.unacked[:n] {
		if i+1 < n && s.unacked[i+1].sub == f.sub {
			continue // the next says more
		}
		f.sub.ackedTo = f.sub.joined.Position(f.offset)
		f.sub.settleLocked()
	}
	s.acked += uint64(n)
	s.unacked = slices.Delete(s.unacked, 0, n)
}

// shrinkLocked lets go of the list of a burst, which should not stay with a session
// that waits. One that is catching up needs it again.
func (s *Session) shrinkLocked() {
	if len(s.unacked) == 0 && cap(s.unacked) > 64 {
		s.unacked = nil
		s.countLocked()
	}
}

func (p *Poll) stopLocked(why *wire.Problem) {
	if p.why == nil {
		p.why = why
		if p.stop != nil {
			close(p.stop)
		}
		if p.session.parked == p {
			p.session.wakeParkedLocked()
		}
	}
}

// Done ends the poll.
func (p *Poll) Done(now time.Time) {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.poll == p {
		s.poll = nil
		s.active = now
	}
	p.letGo()
}

// letGo lets go of the frames that were taken, which the history may evict.
func (p *Poll) letGo() {
	if cap(p.frames) > keptFrames {
		p.frames = nil
	}
	clear(p.frames[:cap(p.frames)])
}

// keptFrames is how long a list of frames a poll keeps for the next Take.
const keptFrames = 16

// Hello says from where each topic goes on: what is not acked comes again.
func (p *Poll) Hello() []wire.Position {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.session.ackedPositionsLocked()
}

// Take takes frames within limit: those to be sent again first, then what is
// queued, then what is behind. If there are none it parks for as long as wait
// and then returns none; at once, if nothing can be sent before an ack. The
// frames are noted as sent. The error is a *wire.Problem if the poll must end,
// and ctx's if the client left.
func (p *Poll) Take(ctx context.Context, limit broker.Limit, wait time.Duration) ([]*frame.Frame, error) {
	if err := p.read(ctx); err != nil {
		return nil, err
	}
	defer func() { <-p.session.reading }()
	p.fresh = false
	frames, full, err := p.collect(ctx, queued{}, limit)
	if len(frames) > 0 || full && p.acks == nil || err != nil || wait <= 0 {
		return frames, err
	}
	return p.park(ctx, limit, wait, full)
}

// read gets hold of reading, unless the poll is over before.
func (p *Poll) read(ctx context.Context) error {
	select {
	case p.session.reading <- struct{}{}:
		return nil
	default:
	}
	if err := p.prepare(); err != nil {
		return err
	}
	select {
	case p.session.reading <- struct{}{}:
		return nil
	case <-p.stop:
		return p.why
	case <-ctx.Done():
		return ctx.Err()
	}
}

// park waits on the queue. It is the one place where a poll's goroutine spends
// its life. While the poll is full it leaves the queue as it is.
func (p *Poll) park(ctx context.Context, limit broker.Limit, wait time.Duration, full bool) ([]*frame.Frame, error) {
	p.letGo()
	if err := p.prepare(); err != nil {
		return nil, err
	}
	p.startTimeout(wait)
	defer p.timeout.Stop()
	for {
		queue := p.session.queue
		if full {
			queue = nil
		}
		var e queued
		select {
		case e = <-queue:
		case <-p.acks:
		case <-p.stop:
			return nil, p.why
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.timeout.C:
			return nil, nil
		}
		var frames []*frame.Frame
		var err error
		if frames, full, err = p.collect(ctx, e, limit); len(frames) > 0 || err != nil {
			p.fresh = err == nil
			return frames, err
		}
	}
}

// prepare makes what a poll waits on, unless it is over: a poll that parks on its
// connection needs neither, and an idle session should not pay for it.
func (p *Poll) prepare() error {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.why != nil {
		return p.why
	}
	s.shrinkLocked()
	if p.stop == nil {
		p.stop = make(chan struct{})
	}
	s.makeQueueLocked()
	return nil
}

func (p *Poll) startTimeout(wait time.Duration) {
	if p.timeout == nil {
		p.timeout = time.NewTimer(wait)
	} else {
		p.timeout.Reset(wait)
	}
}

// Fresh reports whether the last Take had parked and was woken by what it returned:
// the subscriber was there when it was published.
func (p *Poll) Fresh() bool { return p.fresh }

// collect takes what is there, e first, which was taken from the queue; without it,
// what the last taking could not send. If the poll must end, e waits for the next one. full says that nothing more can be sent before the client acks. The frames
// are valid until the next Take.
func (p *Poll) collect(ctx context.Context, e queued, limit broker.Limit) (frames []*frame.Frame, full bool, err error) {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.collectLocked(ctx, e, limit, time.Now())
}

func (p *Poll) collectLocked(ctx context.Context, e queued, limit broker.Limit, now time.Time) (frames []*frame.Frame, full bool, err error) {
	s := p.session
	if err := p.over(ctx); err != nil {
		s.carryLocked(e)
		return nil, false, err
	}
	if e.frame == nil {
		e, s.carried = s.carried, queued{}
	}
	t := taking{poll: p, now: now, limit: limit, frames: p.frames[:0]}
	t.resend()
	t.limit = p.roomLocked(t.limit)
	t.tellPatterns()
	pinned := s.pinned
	t.drain(e)
	if s.pinned < pinned {
		s.waiting = now.UnixNano()
	}
	t.catchUp()
	s.countLocked()
	p.frames = t.frames
	return t.frames, p.fullLocked(), nil
}

// over returns why the poll must end, or nil.
func (p *Poll) over(ctx context.Context) error {
	if p.why != nil {
		return p.why
	}
	return ctx.Err()
}
