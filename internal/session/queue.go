package session

import (
	"time"
	"unsafe"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// queued is a frame that waits for a poll. The zero value only wakes the poll.
type queued struct {
	sub   *subscription
	frame *frame.Frame
}

// A queue has the frames that wait for a poll.
type queue struct {
	// frames is filled under Session.mu by fan-outs, and drained by the poll that holds
	// Session.reading. Never closed. Made under mu by the poll that holds reading or while
	// nobody reads.
	frames chan queued

	// Guarded by Session.mu:
	leftover queued // taken from frames but not sent; sent first
	pinned   int    // bytes of the pinned frames: those in frames and leftover
	waiting  int64  // Unix nanoseconds; since then none of those was taken
}

// queueBytes bounds the bytes of queued frames, except that one frame always fits: a queue
// must not keep alive what the histories have evicted long ago. Small messages fill the
// channel first.
const queueBytes = 256 << 10

// makeQueueLocked makes the queue when it is first needed.
func (s *Session) makeQueueLocked() {
	if s.queue.frames == nil {
		s.queue.frames = make(chan queued, s.registry.cfg.Load().Queue)
		s.countLocked()
	}
}

// unpinLocked must be called for each entry that leaves the queue and is not put back.
func (s *Session) unpinLocked(e queued) {
	if e.frame != nil {
		s.queue.pinned -= e.frame.Size()
		e.frame.Unpin()
	}
}

// putBackLocked keeps an entry that was taken from the queue for the next Take.
func (s *Session) putBackLocked(e queued) {
	switch {
	case e.frame == nil: // it only woke the poll
	case s.ended != nil:
		s.unpinLocked(e)
	case s.queue.leftover.frame != nil:
		panic("BUG: a frame is left over already")
	default:
		s.queue.leftover = e
	}
}

// emptyQueueLocked calls do for each entry of the queue, in order.
func (s *Session) emptyQueueLocked(do func(queued)) {
	e := s.queue.leftover
	s.queue.leftover = queued{} // first: do may end the session
	for {
		do(e)
		select {
		case e = <-s.queue.frames:
		default:
			return
		}
	}
}

// wakeLocked wakes a parked poll to read for the subscriptions that are behind. A full
// queue wakes the poll in any case.
func (s *Session) wakeLocked() {
	if len(s.behind)+len(s.notices) == 0 {
		return
	}
	s.wakeParkedLocked()
	s.makeQueueLocked() // a poll may be about to park on it
	select {
	case s.queue.frames <- queued{}:
	default:
	}
}

// sessionBytes is what a session itself takes: struct, id, and its places in the registry. Measured
// with 20,000.
const sessionBytes = 416

// noticeBytes is what a notice takes: its gap, and the subscription that it is of.
const noticeBytes = 352

// countLocked updates the memory account of the session, its queue, its notices and the list of
// unacked frames. That is far from 2 GiB.
func (s *Session) countLocked() {
	takes := sessionBytes + len(s.notices)*noticeBytes + cap(s.queue.frames)*int(unsafe.Sizeof(queued{})) + cap(s.window.unacked)*int(unsafe.Sizeof(sent{}))
	if s.ended != nil {
		takes = 0
	}
	if more := int32(takes) - s.counted; more != 0 {
		s.registry.broker.Memory().Add(memory.Queues, int64(more))
		s.counted += more
	}
}

// stallAfter is how long queued frames wait until their session counts as stalled: longer
// than a client needs between two polls.
const stallAfter = time.Second

// Trim empties the queues of stalled sessions until enough reports true, and returns of how
// many. Their topics continue from the history under their policy for slow subscribers: a
// gap announces what the history no longer has, or the session ends. Unacked frames stay.
// Sessions that are slow in other ways too, behind or late with acks, come first.
func (r *Registry) Trim(now time.Time, enough func() bool) (trimmed int) {
	for _, onlySlow := range []bool{true, false} {
		r.sessions.each(func(s *Session) {
			if !enough() && s.trim(now, onlySlow) {
				trimmed++
			}
		})
	}
	r.metrics.SessionsTrimmed.Add(float64(trimmed))
	return trimmed
}

// trim empties the queue of a stalled session and reports whether it is one.
func (s *Session) trim(now time.Time, onlySlow bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	stalled := s.queue.pinned > 0 && s.ended == nil && now.UnixNano()-s.queue.waiting >= int64(stallAfter)
	slow := len(s.behind) > 0 || len(s.window.unacked) >= s.registry.cfg.Load().Unacked/2
	if !stalled || onlySlow && !slow {
		return false
	}
	s.emptyQueueLocked(func(e queued) { // the topic continues from the history before the entry
		s.unpinLocked(e)
		if e.frame == nil || e.sub.dropped || e.sub.cursor < e.frame.Position().Offset {
			return // it only woke the poll, is not wanted, or an earlier entry was left
		}
		e.sub.cursor = e.frame.Position().Offset - 1
		e.sub.fallBehindLocked()
	})
	s.wakeLocked() // a poll may just have parked
	return true
}
