package session

import (
	"context"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
)

// An Outlet is the connection that a poll parks on. The session calls its methods under
// its lock: they must not block and must not call back.
//
// A poll waits in one of two ways. With Take, a goroutine parks on the session's queue: a
// fan-out sends to the queue, the goroutine wakes, takes the frames and writes them. With
// an Outlet, the fan-out's goroutine writes the frames to the connection itself. That
// saves the stack of the waiting goroutine and the cost of waking it; the rows pubsubd and
// pubsubd-channel in loadtest/results/compare.md show the difference. Whatever the Outlet
// does not take goes through the queue: the session wakes the connection, and its poll
// takes from the queue.
type Outlet interface {
	// HandOver writes frames, which are noted as sent. Without frames it writes what ends
	// or continues a poll that has timed out. It returns the poll's new state: Over, Parked
	// if the poll is a stream and takes more, or Continues if its connection has to write
	// first; then Wake follows. The frames are valid until it returns.
	HandOver(frames []*frame.Frame) State

	// Encoding returns how HandOver encodes frames. The session makes the encoding of a large
	// message before it takes its lock.
	Encoding() Encoding

	// Wake makes the connection continue its poll, which is no longer parked. The session
	// calls it once.
	Wake()
}

// An Encoding is how frames are written: in a format, and those of at least DeflateFrom bytes
// deflated; negative: none.
type Encoding struct {
	Format      frame.Format
	DeflateFrom int
}

// A State is the state of a poll, or of its answer.
type State uint8

const (
	// Over means that the wait is over: there are frames or an error, or the poll has
	// timed out. An answer that is Over is complete, or has failed.
	Over State = iota
	// Parked means that the poll is parked on its connection.
	Parked
	// Waiting means that there are no frames, or that another poll is taking them: a
	// goroutine must wait.
	Waiting
	// Continues means that a part was written, and that the poll goes on once the client
	// has read it.
	Continues
)

// TakeOrPark takes frames within limit as Take does, but never waits. Without frames it
// parks the poll on the outlet until Unpark. The outlet gets a HandOver without frames when
// it had none for the time wait. A nil outlet gives Waiting instead: call Take. Over may
// also mean that the poll needs an ack that cannot come.
func (p *Reader) TakeOrPark(to Outlet, limit frame.Limit, wait time.Duration, now time.Time) ([]*frame.Frame, State, error) {
	s := p.session
	if !s.reading.tryTake() {
		return nil, Waiting, nil
	}
	defer s.reading.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	p.fresh = false
	frames, full, err := p.collectLocked(context.Background(), queued{}, limit, now)
	switch {
	case len(frames) > 0 || full && p.acks == nil || err != nil || wait <= 0:
		return frames, Over, err
	case to == nil:
		return nil, Waiting, nil
	}
	p.releaseFrames()
	s.shrinkUnackedLocked()
	p.outlet, p.limit, p.wait = to, limit, wait
	s.readers.parked = p
	s.timeOutAtLocked(now.Add(wait))
	return nil, Parked, nil
}

// timeOutAtLocked sets when the parked poll times out.
func (s *Session) timeOutAtLocked(due time.Time) {
	s.readers.due = due.Sub(s.opened)
	s.registry.sessions.visitBy(s, due)
}

// Unpark takes the poll back from its outlet. over: its whole answer was handed over and
// the poll is done. woken: Wake was called.
func (p *Reader) Unpark() (over, woken bool) {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers.parked != p {
		return p.handedOver, !p.handedOver
	}
	s.readers.parked = nil
	return false, false
}

// IsParked reports whether the poll still waits on its outlet.
func (p *Reader) IsParked() bool {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.session.readers.parked == p
}

// wakeParkedLocked wakes the connection of the parked poll, if any, which then is no
// longer parked.
func (s *Session) wakeParkedLocked() {
	if p := s.readers.parked; p != nil {
		s.readers.parked = nil
		p.outlet.Wake()
	}
}
