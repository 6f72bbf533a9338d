package session

import (
	"slices"
	"time"
	"unsafe"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
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

// Offer implements broker.Subscriber: it hands over what a parked connection takes
// at once, queues what fits, and leaves the rest in the history.
func (sub *subscription) Offer(frames []*frame.Frame, now time.Time) {
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
	if s.except != "" {
		defer sub.passLocked(frames[len(frames)-1].Position().Offset)
		if frames = others(frames, s.except); len(frames) == 0 {
			return
		}
	}
	if sub.pace != nil {
		sub.pace.comeLocked(sub, now)
		return
	}
	// Fast path: a poll is parked on its connection, and nothing goes before these.
	if s.parked != nil && !s.waitsLocked() {
		frames = frames[s.handOverLocked(sub, frames, now):]
		if sub.dropped {
			return // it was a stateless poll's, which is over
		}
	}
	sub.enqueueLocked(frames, now)
}

// others returns the frames that are not of the client of that name.
func others(frames []*frame.Frame, client string) []*frame.Frame {
	isOwn := func(f *frame.Frame) bool { return f.Message().Client == client }
	if !slices.ContainsFunc(frames, isOwn) {
		return frames
	}
	return slices.DeleteFunc(slices.Clone(frames), isOwn)
}

// passLocked passes the client's own messages up to offset, unless something waits in
// the history: they are passed there.
func (sub *subscription) passLocked(offset uint64) {
	if sub.dropped || sub.behind || sub.pace.waits() {
		return
	}
	sub.cursor = offset
	sub.settleLocked()
}

// enqueueLocked queues what fits and wakes the poll, if one is parked on its
// connection.
func (sub *subscription) enqueueLocked(frames []*frame.Frame, now time.Time) {
	s := sub.session
	if len(frames) > 0 && s.in.broker.Tight() {
		sub.tightenLocked()
		return
	}
	if s.pinned == 0 {
		s.waiting = now.UnixNano()
	}
	for _, f := range frames {
		if !s.enqueueLocked(queued{sub, f}) {
			sub.fallBehindLocked()
			break
		}
		sub.cursor = f.Position().Offset
		sub.last = sub.cursor
	}
	if len(frames) > 0 && (s.parked == nil || !s.parked.fullLocked()) {
		s.wakeParkedLocked()
	}
}

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

// countLocked tells the broker's budget what the queue and the list of unacked
// frames take.
func (s *Session) countLocked() {
	takes := cap(s.queue)*int(unsafe.Sizeof(queued{})) + cap(s.unacked)*int(unsafe.Sizeof(sent{}))
	if s.ended != nil {
		takes = 0
	}
	if takes != s.counted {
		s.in.broker.CountQueues(takes - s.counted)
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

// fallBehindLocked leaves the rest to the history, or ends the session, as the
// topic's policy says.
func (sub *subscription) fallBehindLocked() {
	s := sub.session
	s.in.metrics.FellBehind.Inc()
	if sub.joined.Slow() == broker.Disconnect {
		s.in.endLocked(s, tooSlow(sub.joined.Topic()), EndedSlow)
		return
	}
	sub.slow, sub.lost = true, wire.GapSlow
	sub.comesBehindLocked()
}

// comesBehindLocked has the poll read what the history holds for the subscription,
// in its turn.
func (sub *subscription) comesBehindLocked() {
	sub.behind = true
	sub.session.behind = append(sub.session.behind, sub)
}

// Emptied implements broker.Subscriber: what is queued goes before the gap.
func (sub *subscription) Emptied() {
	s := sub.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if !sub.behind && !sub.dropped {
		sub.comesBehindLocked()
		s.wakeLocked()
	}
}

func tooSlow(topic string) *wire.Problem {
	return wire.NewProblem(wire.CodeSessionEnded, "open a session from your positions, and read faster or subscribe to less",
		"the session fell behind on topic %q, which ends those that do", topic)
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
