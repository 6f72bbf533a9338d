package session

import (
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// stallAfter is for how long nothing is taken of what is queued before a session
// counts as one that does not read: longer than a client takes from one poll to the
// next.
const stallAfter = time.Second

// Trim has sessions that do not read let go of what their queues pin, until enough
// reports true: each topic goes on from its history, as its policy for the slow says,
// so that resume costs a gap only where the history has passed; the policy disconnect
// ends the session. What was sent and not acked is not touched. Those that are slow
// besides, which fell behind or whose client does not ack, come first. It returns how
// many it trimmed.
func (r *Registry) Trim(now time.Time, enough func() bool) (trimmed int) {
	for _, also := range []func(*Session) bool{(*Session).slowLocked, func(*Session) bool { return true }} {
		r.sessions.each(func(s *Session) {
			if !enough() && s.trim(now, also) {
				trimmed++
			}
		})
	}
	r.metrics.SessionsTrimmed.Add(float64(trimmed))
	return trimmed
}

// trim reports whether there was something to let go of.
func (s *Session) trim(now time.Time, also func(*Session) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stalledLocked(now) || !also(s) {
		return false
	}
	carried := s.carried
	s.carried = queued{} // first: if this ends the session, what it holds is let go of
	s.leaveLocked(carried)
	for {
		select {
		case e := <-s.queue:
			s.leaveLocked(e)
		default:
			s.wakeLocked() // a poll may just have parked
			return true
		}
	}
}

// stalledLocked reports whether frames are queued of which none was taken for long.
func (s *Session) stalledLocked(now time.Time) bool {
	return s.pinned > 0 && s.ended == nil && now.UnixNano()-s.waiting >= int64(stallAfter)
}

// slowLocked reports whether more waits for the client than it was bound to have: it
// fell behind, or keeps acks back.
func (s *Session) slowLocked() bool {
	return len(s.behind) > 0 || len(s.unacked) >= s.config().Unacked/2
}

// leaveLocked takes an entry off the queue and leaves it to its topic's history, with
// all that was queued of the topic behind it.
func (s *Session) leaveLocked(e queued) {
	s.unpinLocked(e)
	if e.frame == nil || e.sub.dropped || e.sub.cursor < e.frame.Position().Offset {
		return // it only woke the poll, is not sent any more, or was left before
	}
	if e.sub.joined.Slow() == broker.Disconnect {
		s.in.endLocked(s, tooSlow(e.sub.joined.Topic()), EndedSlow)
		return
	}
	e.sub.cursor = e.frame.Position().Offset - 1
	e.sub.slow, e.sub.lost = true, wire.GapSlow
	if !e.sub.behind {
		s.in.metrics.FellBehind.Inc()
		e.sub.comesBehindLocked()
	}
}
