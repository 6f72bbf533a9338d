package session

import (
	"context"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
)

// A Direct is the connection that a poll is parked on. Its methods are called
// under the session's lock: they must not block and must not call back.
//
// A poll has two ways to wait. The plain one, Take, parks a goroutine on the
// session's queue: the fan-out sends, the goroutine wakes, takes what is there and
// writes it. The other is this: whoever offers a frame writes it to the connection
// himself. That saves the waking of a goroutine that has nothing to do but write,
// and its stack while it waits: in one interleaved comparison
// (loadtest/results/compare.md) it is the difference between the rows pubsubd and
// pubsubd-channel. The queue stays the one way for whatever does not fit: then, or
// when anything else happens to the poll, the connection is woken and its poll
// takes from the queue.
type Direct interface {
	// HandOver writes frames, which have been noted as sent, or, if there are none,
	// what a poll is told that has waited long enough. It says what becomes of the
	// poll. The frames are valid until it returns.
	HandOver(frames []*frame.Frame) HandedOver

	// Wake makes the connection look after its poll. It comes once, and the poll is
	// no longer parked.
	Wake()
}

// HandedOver is what becomes of a poll that something was handed over to.
type HandedOver uint8

const (
	// Parked says that it may be handed more, as a stream.
	Parked HandedOver = iota
	// Answered says that it is over.
	Answered
	// Stuck says that it goes on, but its connection has to write first. Wake follows.
	Stuck
)

// direct is the part of a poll that parks on its connection; guarded by
// session.mu.
type direct struct {
	to    Direct
	limit broker.Limit  // of what is handed over at a time
	wait  time.Duration // how long the poll is parked before it is told something
	over  bool          // the answer was handed over
}

// Became is what became of a poll that TakeOrPark was called for.
type Became uint8

const (
	// Served says that it was given frames, or that it is not to wait: nothing more
	// can be sent before an ack, it has no patience, or there is an error.
	Served Became = iota
	// DidPark says that it is parked on its connection.
	DidPark
	// MustWait says that there is nothing for it, or another poll is still at it: Take
	// waits for either.
	MustWait
)

// TakeOrPark takes frames within limit as Take does, but never waits. If there are
// none, it parks the poll on the connection for wait; frames, or word that it
// waited long enough, are then handed to the connection. Unpark ends that. Without
// a connection (to is nil) the poll must wait.
func (p *Poll) TakeOrPark(to Direct, limit broker.Limit, wait time.Duration, now time.Time) ([]*frame.Frame, Became, error) {
	s := p.session
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	default:
		return nil, MustWait, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.fresh = false
	frames, full, err := p.collectLocked(context.Background(), queued{}, limit, now)
	switch {
	case len(frames) > 0 || full && p.acks == nil || err != nil || wait <= 0:
		return frames, Served, err
	case to == nil:
		return nil, MustWait, nil
	}
	p.letGo()
	s.shrinkLocked()
	p.direct.to, p.direct.limit, p.direct.wait = to, limit, wait
	s.parked = p
	s.dueAtLocked(now.Add(wait))
	return nil, DidPark, nil
}

// Unpark takes the poll back from the connection. over says that its answer was
// handed over, and the poll is done; woken, that Wake was called.
func (p *Poll) Unpark() (over, woken bool) {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked != p {
		return p.direct.over, !p.direct.over
	}
	s.parked = nil
	return false, false
}

// dueAtLocked has the parked poll told at the given time that it has waited long
// enough.
func (s *Session) dueAtLocked(due time.Time) {
	s.due = due
	s.in.sessions.hurry(s, due)
}

// IsParked reports whether the poll still waits on its connection.
func (p *Poll) IsParked() bool {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.session.parked == p
}

// wakeParkedLocked gives the poll that is parked on its connection, if any, back to
// the connection.
func (s *Session) wakeParkedLocked() {
	if p := s.parked; p != nil {
		s.parked = nil
		p.direct.to.Wake()
	}
}

// handOverLocked hands the first of frames to the parked poll's connection: as
// many as one answer takes. It returns how many.
func (s *Session) handOverLocked(sub *subscription, frames []*frame.Frame, now time.Time) int {
	p := s.parked
	limit := p.roomLocked(p.direct.limit)
	n := 0
	for n < len(frames) && !frames[n].Expired(now) && limit.Take(frames[n], n == 0) {
		sub.cursor = frames[n].Position().Offset
		sub.last = sub.cursor
		p.noteSentLocked(sub, frames[n])
		n++
	}
	if n > 0 {
		s.tellParkedLocked(frames[:n], now)
	}
	return n
}

// tellParkedLocked hands frames, or word that there are none, to the parked poll.
func (s *Session) tellParkedLocked(frames []*frame.Frame, now time.Time) {
	p := s.parked
	switch p.direct.to.HandOver(frames) {
	case Parked:
		s.dueAtLocked(now.Add(p.direct.wait))
	case Answered:
		s.parked = nil
		s.poll, s.active = nil, now
		p.direct.over = true
		s.maybeLeaveLocked()
	case Stuck:
		s.wakeParkedLocked()
	}
}

// maybeLeaveLocked leaves the topics of a stateless poll that is over: its
// connection ends the session when it hears of the client, which may be never.
func (s *Session) maybeLeaveLocked() {
	if !s.ephemeral {
		return
	}
	for _, f := range s.follows {
		f.dropLocked()
	}
	for _, sub := range s.subs {
		sub.dropLocked()
	}
}

// tellIfDueLocked tells a parked poll that it has waited long enough.
func (s *Session) tellIfDueLocked(now time.Time) {
	if s.parked != nil && !s.due.After(now) {
		s.tellParkedLocked(nil, now)
	}
}
