package broker

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Subscription is one Subscriber's place on a topic. Its methods may be called
// concurrently, and after Leave, too: what was sent can still be looked up.
type Subscription struct {
	topic *topic     // immutable
	to    Subscriber // immutable
	index int        // in topic.subs, or gone; guarded by topic.mu
	pins  bool       // keeps the topic from being forgotten; guarded by topic.mu

	settled atomic.Uint64 // one above the offset; see Settle
}

// gone is the index of a subscription that has left, or whose topic was forgotten.
const gone = -1

// Joined is what a new subscriber has to know. The fan-out offers it only what
// comes after the messages that were in the topic when it joined.
type Joined struct {
	*Subscription
	Position wire.Position  // to tell the client: as it gave it, or the one assigned
	Cursor   uint64         // offset after which delivery goes on
	Live     bool           // nothing is held above Cursor: offers continue from it
	Restart  *wire.Position // the position that cannot be honoured, if so: send a gap, restarted
}

// join adds a subscriber and settles where it begins, in one step under the lock,
// so that nothing falls between what is held and what is offered.
func (t *topic) join(start wire.Start, to Subscriber, pins, born bool) (Joined, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.forgotten {
		return Joined{}, errForgotten
	}
	j := t.settleLocked(start)
	if born {
		j = t.fromLocked(t.born)
	}
	j.Subscription = &Subscription{topic: t, to: to, index: len(t.subs)}
	t.subs = append(t.subs, j.Subscription)
	j.Subscription.pinLocked(pins)
	if j.Restart == nil {
		j.Settle(j.Cursor)
	}
	return j, nil
}

// settleLocked says where a subscription with that start begins.
func (t *topic) settleLocked(start wire.Start) Joined {
	var j Joined
	switch {
	case start.From == wire.FromNow:
		j.Cursor = t.head
	case start.From == wire.FromOldest:
		j.Cursor = t.history.lost
	case start.Epoch != t.broker.epoch || start.After > t.head:
		given := t.given(start)
		j.Cursor, j.Restart = t.history.lost, &given
	default:
		j.Cursor = start.After
	}
	j.Position = t.positionLocked(j.Cursor)
	if start.From == wire.FromPosition {
		j.Position = t.given(start)
	}
	j.Live = j.Cursor == t.head && j.Restart == nil
	return j
}

// fromLocked begins after an offset that the topic has had.
func (t *topic) fromLocked(offset uint64) Joined {
	return Joined{Position: t.positionLocked(offset), Cursor: offset, Live: offset == t.head}
}

// given returns the position that a client gave. It shares no memory with the
// request: a substring would keep the whole of it.
func (t *topic) given(start wire.Start) wire.Position {
	p := wire.Position{Topic: t.name, Epoch: t.broker.epoch, Offset: start.After}
	if start.Epoch != p.Epoch {
		p.Epoch = strings.Clone(start.Epoch)
	}
	return p
}

// Leave ends the subscription. An Offer that is under way may still arrive.
func (s *Subscription) Leave() {
	t := s.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.index == gone {
		return
	}
	s.pinLocked(false)
	last := len(t.subs) - 1
	t.subs[s.index] = t.subs[last]
	t.subs[s.index].index = s.index
	t.subs[last] = nil
	t.subs = t.subs[:last]
	s.index = gone
	t.broker.subscriptions.Add(-1)
}

// Pin keeps the topic from being forgotten, or no longer does. It reports false if
// the subscription is gone.
func (s *Subscription) Pin(pins bool) bool {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	if s.index != gone {
		s.pinLocked(pins)
	}
	return s.index != gone
}

func (s *Subscription) pinLocked(pins bool) {
	switch {
	case pins && !s.pins:
		s.topic.pinned++
	case s.pins && !pins:
		s.topic.pinned--
	}
	s.pins = pins
}

// Settle says that the subscriber has dealt with everything up to offset: the topic
// may be forgotten for all of it.
func (s *Subscription) Settle(offset uint64) { s.settled.Store(offset + 1) }

// Gone reports whether the subscription has left, or its topic was forgotten.
func (s *Subscription) Gone() bool {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	return s.index == gone
}

// Read appends what how asks for, gaps and messages in order. It returns the
// frames, the offset up to which they go, and that of the topic's newest message.
func (s *Subscription) Read(dst []*frame.Frame, how Reading, now time.Time) (frames []*frame.Frame, cursor, head uint64) {
	t := s.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	frames, cursor = t.history.read(dst, t.positionLocked(0), how.under(t.limits), now)
	return frames, cursor, t.head
}

// Slow returns the policy for those who fall behind.
func (s *Subscription) Slow() Slow {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	return s.topic.limits.Slow
}

// Lost returns the highest offset that the topic no longer holds.
func (s *Subscription) Lost() uint64 {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	return s.topic.history.lost
}

// Get returns the message at that offset, or nil and why it is lost: it is no
// longer held, or its life is over.
func (s *Subscription) Get(offset uint64, now time.Time) (*frame.Frame, wire.GapReason) {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	f := s.topic.history.get(offset)
	switch {
	case f == nil:
		return nil, s.topic.history.reason
	case f.Expired(now):
		return nil, wire.GapExpired
	}
	return f, ""
}

// Position returns the position of that offset on the subscription's topic.
func (s *Subscription) Position(offset uint64) wire.Position {
	return s.topic.positionLocked(offset) // name and epoch are immutable
}

// Topic returns the topic's name.
func (s *Subscription) Topic() string { return s.topic.name }

// Head returns the offset of the topic's newest message.
func (s *Subscription) Head() uint64 {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	return s.topic.head
}
