package session

import (
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Offer implements broker.Subscriber: it hands over what a parked connection takes
// at once, queues what fits, and leaves the rest in the history.
func (sub *subscription) Offer(frames []*frame.Frame, now time.Time) {
	s := sub.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.behind || sub.dropped {
		return
	}
	if frames[0].Position().Epoch != sub.epoch { // the history says which of the two is over
		sub.comesBehindLocked()
		s.wakeLocked()
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
	if len(frames) > 0 && s.in.broker.Memory().Tight() {
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

// tightenLocked leaves what comes to the history instead of the queue, which would
// keep it alive: nobody has been slow, so no policy applies, and whoever waits is
// woken to read it.
func (sub *subscription) tightenLocked() {
	sub.comesBehindLocked()
	sub.session.wakeLocked()
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

func tooSlow(topic string) *wire.Problem {
	return wire.NewProblem(wire.CodeSessionEnded, "open a session from your positions, and read faster or subscribe to less",
		"the session fell behind on topic %q, which ends those that do", topic)
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

// Forgotten implements broker.Subscriber: nothing of the topic is to come any more.
func (sub *subscription) Forgotten() {
	s := sub.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if topic := sub.joined.Topic(); s.subs[topic] == sub {
		s.dropTopicLocked(topic)
	}
}
