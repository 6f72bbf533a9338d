package session

import (
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// turn is how many frames of one topic that is behind are taken before the next
// topic's turn comes.
const turn = 64

// A taking collects the frames of one Take. It lives within one hold of the
// session's lock and of reading.
type taking struct {
	poll   *Poll
	now    time.Time
	limit  broker.Limit
	frames []*frame.Frame
}

// resend takes the frames that were sent by earlier polls and not acked, with the
// numbers they have.
func (t *taking) resend() {
	p, s := t.poll, t.poll.session
	for p.resent < len(s.unacked) {
		f := s.resentLocked(p.resent, t.now)
		if !t.limit.Take(f, len(t.frames) == 0) {
			t.limit.Frames = 0
			return
		}
		t.frames = append(t.frames, f)
		s.in.metrics.Resent.Inc()
		if p.trust {
			s.letGoLocked(1)
		} else {
			p.resent++
		}
	}
}

// resentLocked returns the i-th unacked frame again. A message that the history
// let go of has become a gap, and stays one.
func (s *Session) resentLocked(i int, now time.Time) *frame.Frame {
	u := &s.unacked[i]
	if u.gap == nil {
		f, lost := u.sub.joined.Get(u.offset, now)
		if f != nil {
			return f
		}
		u.gap = &wire.Gap{
			Topic: u.sub.joined.Topic(), Reason: lost,
			After: s.beforeLocked(i), Position: u.sub.joined.Position(u.offset),
		}
		s.in.metrics.Gaps.WithLabelValues(string(u.gap.Reason)).Inc()
	}
	return frame.NewGap(*u.gap)
}

// beforeLocked returns the position of the frame before the i-th unacked one, on
// the same topic.
func (s *Session) beforeLocked(i int) wire.Position {
	sub := s.unacked[i].sub
	for j := i - 1; j >= 0; j-- {
		if s.unacked[j].sub == sub {
			return sub.joined.Position(s.unacked[j].offset)
		}
	}
	return sub.ackedTo
}

// tellPatterns takes the gaps of patterns, before anything of the topics that they
// stand for.
func (t *taking) tellPatterns() {
	s := t.poll.session
	for len(s.notices) > 0 && t.limit.Frames > 0 {
		t.catchUpWith(s.notices[0], broker.Limit{Frames: 1, Bytes: t.limit.Bytes})
		s.notices[0].behind = false
		s.notices = slices.Delete(s.notices, 0, 1)
	}
	if len(s.notices) > 0 {
		t.limit.Frames = 0
	}
}

// drain takes e and what is queued.
func (t *taking) drain(e queued) {
	s := t.poll.session
	depth := len(s.queue)
	if e.frame != nil {
		depth++
	}
	if depth > 0 {
		s.in.metrics.QueueDepth.Observe(float64(depth))
	}
	for {
		if e.frame != nil && !e.sub.dropped {
			f := e.sub.currentLocked(e.frame, t.now)
			if !t.limit.Take(f, len(t.frames) == 0) {
				s.carryLocked(e)
				t.limit.Frames = 0
				return
			}
			t.send(e.sub, f)
		}
		s.unpinLocked(e)
		select {
		case e = <-s.queue:
		default:
			return
		}
	}
}

// currentLocked returns f, or a gap if the message's own life is over.
func (sub *subscription) currentLocked(f *frame.Frame, now time.Time) *frame.Frame {
	if !f.Expired(now) {
		return f
	}
	return frame.NewGap(wire.Gap{
		Topic: sub.joined.Topic(), Reason: wire.GapExpired, After: sub.sentTo, Position: f.Position(),
	})
}

// catchUp takes from history, once the queue is drained, what is behind, topic by
// topic in turns. A topic's queued frames come before those it has in history, so
// nothing is read while the queue holds anything that did not fit.
func (t *taking) catchUp() {
	s := t.poll.session
	for len(s.behind) > 0 && t.limit.Frames > 0 && t.limit.Bytes > 0 {
		sub := s.behind[0]
		t.catchUpWith(sub, broker.Limit{Frames: min(turn, t.limit.Frames), Bytes: t.limit.Bytes})
		s.behind = slices.Delete(s.behind, 0, 1)
		if sub.behind {
			s.behind = append(s.behind, sub)
		}
	}
	if len(s.behind) == 0 {
		s.behind = nil
	}
}

// catchUpWith takes what the history has next for a subscription.
func (t *taking) catchUpWith(sub *subscription, limit broker.Limit) {
	frames := sub.catchUpLocked(limit, t.now)
	if n := len(frames); n > 0 {
		sub.last = frames[n-1].Position().Offset
	}
	for _, f := range frames {
		t.limit.Take(f, true)
		t.send(sub, f)
	}
	sub.settleLocked()
}

// send notes f as sent and appends it.
func (t *taking) send(sub *subscription, f *frame.Frame) {
	t.poll.noteSentLocked(sub, f)
	t.frames = append(t.frames, f)
}

// noteSentLocked gives f its number, before it is written.
func (p *Poll) noteSentLocked(sub *subscription, f *frame.Frame) {
	s := p.session
	s.sent++
	sub.sentTo = f.Position()
	if f.Gap() != nil {
		s.in.metrics.Gaps.WithLabelValues(string(f.Gap().Reason)).Inc()
	}
	if p.trust {
		s.acked++ // nothing is unacked before it: resend came first
		sub.ackedTo = sub.sentTo
		sub.settleLocked()
		return
	}
	p.slideLocked()
	s.unacked = append(s.unacked, sent{sub: sub, offset: sub.sentTo.Offset, gap: f.Gap()})
	p.resent++
}
