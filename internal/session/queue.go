package session

import (
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// queued is a frame waiting for a poll. The zero value only wakes the poll.
type queued struct {
	sub   *subscription
	frame *wire.Frame
}

// queueBytes is how many bytes of frames a session's queue may hold beyond one
// frame: it must not keep alive what the histories have long let go of. Small
// messages fill the queue's places before.
const queueBytes = 256 << 10

// Offer implements broker.Subscriber: it hands over what a parked connection takes
// at once, queues what fits, and leaves the rest in the history.
func (sub *subscription) Offer(frames []*wire.Frame, now time.Time) {
	s := sub.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.behind || sub.dropped {
		return
	}
	for len(frames) > 0 && frames[0].Position().Offset <= sub.cursor {
		frames = frames[1:] // it was there when the subscription began, or was read from history
	}
	if len(frames) == 0 {
		return
	}
	// Fast path: a poll is parked on its connection, and nothing goes before these.
	if s.parked != nil {
		frames = frames[s.handOverLocked(sub, frames, now):]
		if sub.dropped {
			return // it was a stateless poll's, which is over
		}
	}
	sub.enqueueLocked(frames)
}

// enqueueLocked queues what fits and wakes the poll, if one is parked on its
// connection.
func (sub *subscription) enqueueLocked(frames []*wire.Frame) {
	s := sub.session
	for _, f := range frames {
		if !s.enqueueLocked(queued{sub, f}) {
			sub.fallBehindLocked()
			break
		}
		sub.cursor = f.Position().Offset
	}
	if len(frames) > 0 {
		s.wakeParkedLocked()
	}
}

// enqueueLocked reports whether the entry fitted the queue.
func (s *Session) enqueueLocked(e queued) bool {
	size := e.frame.Size()
	if s.pinned > 0 && s.pinned+size > queueBytes {
		return false
	}
	s.makeQueueLocked()
	select {
	case s.queue <- e:
		s.pinned += size
		return true
	default:
		return false
	}
}

// makeQueueLocked makes the queue when something is first queued or waited for.
func (s *Session) makeQueueLocked() {
	if s.queue == nil {
		s.queue = make(chan queued, s.cfg.Queue)
	}
}

func (sub *subscription) fallBehindLocked() {
	s := sub.session
	s.metrics.FellBehind.Inc()
	sub.behind, sub.lost = true, wire.GapSlow
	s.behind = append(s.behind, sub)
}

// wakeLocked wakes a parked poll to look at what is behind. A queue that is full
// needs no waking.
func (s *Session) wakeLocked() {
	if len(s.behind) == 0 {
		return
	}
	s.wakeParkedLocked()
	s.makeQueueLocked() // a poll may be about to wait on it
	select {
	case s.queue <- queued{}:
	default:
	}
}

// carry keeps an entry that was taken from the queue for the next taking. Its
// caller holds reading.
func (s *Session) carry(e queued) {
	if e.frame == nil {
		return // it only woke the poll
	}
	if s.carried.frame != nil {
		panic("BUG: a frame is carried already")
	}
	s.carried = e
}
