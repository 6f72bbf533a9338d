package session

import "github.com/pubsubd/pubsubd/pkg/wire"

// queued is a frame waiting for a poll. The zero value only wakes the poll.
type queued struct {
	sub   *subscription
	frame *wire.Frame
}

// queueBytes is how many bytes of frames a session's queue may hold beyond one
// frame: it must not keep alive what the histories have long let go of. Small
// messages fill the queue's places before.
const queueBytes = 256 << 10

// Offer implements broker.Subscriber: it queues what fits and leaves the rest in
// the history.
func (sub *subscription) Offer(frames []*wire.Frame) {
	s := sub.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.behind || sub.dropped {
		return
	}
	for _, f := range frames {
		offset := f.Position().Offset
		if offset <= sub.cursor {
			continue // it was there when the subscription began, or was read from history
		}
		if !s.enqueueLocked(queued{sub, f}) {
			sub.fallBehindLocked()
			return
		}
		sub.cursor = offset
	}
}

// enqueueLocked reports whether the entry fitted the queue.
func (s *Session) enqueueLocked(e queued) bool {
	size := e.frame.Size()
	if s.pinned > 0 && s.pinned+size > queueBytes {
		return false
	}
	select {
	case s.queue <- e:
		s.pinned += size
		return true
	default:
		return false
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
