package session

import (
	"context"
	"time"

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
