package session

import (
	"unsafe"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// queued is a frame waiting for a poll. The zero value only wakes the poll.
type queued struct {
	sub   *subscription
	frame *frame.Frame
}

// queueBytes is how many bytes of frames a session's queue may hold beyond one
// frame: it must not keep alive what the histories have long let go of. Small
// messages fill the queue's places before.
const queueBytes = 256 << 10

// waitsLocked reports whether something waits to be taken, before what comes now.
func (s *Session) waitsLocked() bool {
	return len(s.queue) > 0 || s.carried.frame != nil || len(s.behind)+len(s.notices) > 0
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
		e.frame.Pin()
		return true
	default:
		return false
	}
}

// unpinLocked takes an entry off the queue's account.
func (s *Session) unpinLocked(e queued) {
	if e.frame != nil {
		s.pinned -= e.frame.Size()
		e.frame.Unpin()
	}
}

// emptyQueueLocked lets go of what an ended session holds. An entry that a poll has
// just taken comes back to carry.
func (s *Session) emptyQueueLocked() {
	s.unpinLocked(s.carried)
	s.carried = queued{}
	for {
		select {
		case e := <-s.queue:
			s.unpinLocked(e)
		default:
			return
		}
	}
}

// countLocked counts the memory of the queue and of the list of unacked frames.
func (s *Session) countLocked() {
	takes := cap(s.queue)*int(unsafe.Sizeof(queued{})) + cap(s.unacked)*int(unsafe.Sizeof(sent{}))
	if s.ended != nil {
		takes = 0
	}
	if takes != s.counted {
		s.in.broker.Memory().Add(memory.Queues, int64(takes-s.counted))
		s.counted = takes
	}
}

// makeQueueLocked makes the queue when something is first queued or waited for.
func (s *Session) makeQueueLocked() {
	if s.queue == nil {
		s.queue = make(chan queued, s.config().Queue)
		s.countLocked()
	}
}

// wakeLocked wakes a parked poll to look at what is behind. A queue that is full
// needs no waking.
func (s *Session) wakeLocked() {
	if len(s.behind)+len(s.notices) == 0 {
		return
	}
	s.wakeParkedLocked()
	s.makeQueueLocked() // a poll may be about to wait on it
	select {
	case s.queue <- queued{}:
	default:
	}
}

// carryLocked keeps an entry that was taken from the queue for the next taking.
func (s *Session) carryLocked(e queued) {
	switch {
	case e.frame == nil: // it only woke the poll
	case s.ended != nil:
		s.unpinLocked(e)
	case s.carried.frame != nil:
		panic("BUG: a frame is carried already")
	default:
		s.carried = e
	}
}
