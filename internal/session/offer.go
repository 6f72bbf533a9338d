package session

import (
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Offer implements broker.Subscriber. It hands frames to a parked connection as far as
// that takes them, queues what fits, and leaves the rest in the history.
func (sub *subscription) Offer(frames []*frame.Frame, now time.Time) {
	s := sub.session
	encoding, large := s.encodeLarge(frames)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.behind || sub.dropped {
		return
	}
	if frames[0].Position().Epoch != sub.epoch { // the history knows which of the two is newer
		sub.catchUpLocked()
		return
	}
	for len(frames) > 0 && frames[0].Position().Offset <= sub.cursor {
		frames = frames[1:] // the subscription started after it, or read it from the history
	}
	if len(frames) == 0 {
		return
	}
	upTo := frames[len(frames)-1].Position().Offset
	if s.noEcho {
		defer sub.skipOwnLocked(upTo, now)
		if frames = withoutClient(frames, s.client); len(frames) == 0 {
			return
		}
	}
	if p := sub.pace; p != nil {
		if now.Before(p.next) {
			p.armLocked(sub, now)
		} else {
			sub.catchUpLocked()
		}
		return
	}
	// Fast path: a poll is parked on its connection, and no other frames precede these.
	if s.readers.parked != nil && !s.hasBacklogLocked() && (!large || s.readers.parked.outlet.Encoding() == encoding) {
		frames = frames[s.handOverLocked(sub, frames, upTo, now):]
		if len(frames) == 0 || sub.dropped { // a stateless poll has its answer
			return
		}
	}
	sub.queueLocked(frames, now)
}

// hasBacklogLocked reports whether a poll must take something before newly offered frames.
func (s *Session) hasBacklogLocked() bool {
	return len(s.queue.frames) > 0 || s.queue.leftover.frame != nil || len(s.behind)+len(s.notices) > 0
}

// handOverLocked hands the first frames to the parked poll's outlet, as many as one answer
// takes, and returns how many. The client's own messages up to an offset may follow them. Without
// frames it continues or ends a poll that has timed out.
func (s *Session) handOverLocked(sub *subscription, frames []*frame.Frame, upTo uint64, now time.Time) (n int) {
	p := s.readers.parked
	limit := p.withinWindowLocked(p.limit)
	for n < len(frames) && !frames[n].Expired(now) && limit.Take(frames[n], n == 0) {
		sub.cursor = frames[n].Position().Offset
		sub.last = sub.cursor
		p.noteSentLocked(sub, frames[n])
		n++
	}
	if n == 0 && len(frames) > 0 {
		return 0
	}
	if n > 0 && n == len(frames) && s.noEcho {
		sub.skipOwnLocked(upTo, now) // before the answer ends
	}
	frames = frames[:n]
	if !p.lasts {
		frames = p.withMovedLocked(frames, now)
	}
	s.giveLocked(frames, now)
	return n
}

// giveLocked gives frames to the parked poll's outlet.
func (s *Session) giveLocked(frames []*frame.Frame, now time.Time) {
	p := s.readers.parked
	if p.acking == AcksLater {
		p.notePatternsLocked()
	}
	switch p.outlet.HandOver(frames) {
	case Parked:
		s.timeOutAtLocked(now.Add(p.wait))
	case Over:
		s.readers.parked = nil
		s.endReaderLocked(now)
		p.handedOver = true
		if s.ephemeral {
			s.unsubscribeLocked() // its connection ends it later, perhaps much later
		}
	case Continues:
		s.wakeParkedLocked()
	}
}

// largeMessage is the size of the smallest message that is encoded without the session's lock.
// To deflate it takes half a millisecond.
const largeMessage = 64 << 10

// encodeLarge makes the encoding of large messages that the outlet of the parked poll needs, and
// returns it.
func (s *Session) encodeLarge(frames []*frame.Frame) (e Encoding, large bool) {
	for _, f := range frames {
		// Fast path: most messages.
		if f.Size() < largeMessage {
			continue
		}
		if !large {
			large = true
			s.mu.Lock()
			if s.readers.parked != nil {
				e = s.readers.parked.outlet.Encoding()
			}
			s.mu.Unlock()
		}
		if e != (Encoding{}) {
			f.Bytes(e.Format)
			f.Deflated(e.Format, e.DeflateFrom)
		}
	}
	return e, large
}

// withoutClient returns the frames that are not from the client of that name.
func withoutClient(frames []*frame.Frame, client string) []*frame.Frame {
	isOwn := func(f *frame.Frame) bool { return f.Message().Client == client }
	if !slices.ContainsFunc(frames, isOwn) {
		return frames
	}
	return slices.DeleteFunc(slices.Clone(frames), isOwn)
}

// skipOwnLocked skips the client's own messages up to offset, unless the subscription must
// read the history first: that skips them, too.
func (sub *subscription) skipOwnLocked(offset uint64, now time.Time) {
	if sub.dropped || sub.behind || sub.pace.waits() {
		return
	}
	if offset > sub.cursor {
		sub.cursor = offset
		sub.session.noteMovedLocked(now)
	}
	sub.releaseTopicLocked()
}

// queueLocked queues the frames that fit, and wakes a poll that is parked on its
// connection, unless it must wait for an ack.
func (sub *subscription) queueLocked(frames []*frame.Frame, now time.Time) {
	s := sub.session
	if s.registry.broker.Memory().Tight() {
		// The queue would keep the messages in memory. No policy applies, as nobody is slow.
		sub.catchUpLocked()
		return
	}
	if s.queue.pinned == 0 {
		s.queue.waiting = now.UnixNano()
	}
	s.makeQueueLocked()
	for _, f := range frames {
		fits := s.queue.pinned == 0 || s.queue.pinned+f.Size() <= queueBytes
		if fits {
			select {
			case s.queue.frames <- queued{sub, f}:
			default:
				fits = false
			}
		}
		if !fits {
			sub.fallBehindLocked()
			break
		}
		s.queue.pinned += f.Size()
		f.Pin()
		sub.cursor = f.Position().Offset
		sub.last = sub.cursor
	}
	if s.readers.parked == nil || !s.readers.parked.windowFullLocked() {
		s.wakeParkedLocked()
	}
}

// fallBehindLocked leaves the messages above cursor to the history, or ends the session if
// that is the topic's policy.
func (sub *subscription) fallBehindLocked() {
	s := sub.session
	if !sub.behind {
		s.registry.metrics.FellBehind.Inc()
	}
	if sub.joined.Rule().Slow == broker.Disconnect {
		s.endLocked(tooSlow(sub.joined.Topic()), endedSlow)
		return
	}
	sub.slow, sub.lost = true, wire.GapSlow
	if !sub.behind {
		sub.markBehindLocked()
	}
}

func tooSlow(topic string) *wire.Problem {
	return problem.New(wire.CodeSessionEnded, "open a session from your positions, and read faster or subscribe to less",
		"the session fell behind on topic %s, whose policy is to end slow sessions", wire.Quote(topic))
}

// Missed implements broker.Subscriber. Queued frames precede the gap.
func (sub *subscription) Missed() {
	sub.session.mu.Lock()
	defer sub.session.mu.Unlock()
	sub.catchUpLocked()
}

// Forgotten implements broker.Subscriber: the topic will send no more.
func (sub *subscription) Forgotten() {
	s := sub.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if topic := sub.joined.Topic(); s.subs.get(topic) == sub {
		s.dropTopicLocked(topic)
	}
}
