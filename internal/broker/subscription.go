package broker

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Subscription is one Subscriber's subscription to a topic. Its methods may be called
// concurrently, also after Leave: messages that were sent can still be read.
type Subscription struct {
	topic *topic     // immutable
	to    Subscriber // immutable

	// Guarded by topic.mu.
	index     int  // in topic.subs, or left
	pins      bool // keeps the topic from being forgotten
	paced     bool // has a rate
	restarted bool // the topic does not know its position; the next Read announces it

	doneTo atomic.Uint64 // one above the offset; see DoneTo
}

// left is the index of a subscription that has left, or whose topic was forgotten.
const left = -1

// Joined is a new subscription, and where it begins. The fan-out offers only messages
// that are newer than the topic's newest one at that time.
type Joined struct {
	*Subscription
	Position wire.Position // for the client: the position that it gave, or the one assigned
	Epoch    string        // of Cursor
	Cursor   uint64        // offset after which delivery continues
	Born     uint64        // offset before the topic's first message, in the topic's present epoch
	Live     bool          // the next Read would return nothing: offers continue from Cursor
}

// join adds a subscriber, and decides where it begins, both under the lock: so it misses
// no message between the history and the first offer. It reports false if the topic was
// forgotten.
func (t *topic) join(start wire.Start, to Subscriber, pins, born bool) (j Joined, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.forgotten {
		return Joined{}, false
	}
	paced := start.Every > 0
	if born {
		start = wire.StartAfter(t.positionLocked(t.born))
	}
	j, restarted := t.resolveLocked(start)
	j.Born = t.born
	j.Subscription = &Subscription{topic: t, to: to, index: len(t.subs), paced: paced, restarted: restarted}
	if paced {
		t.paced++
	}
	t.subs = append(t.subs, j.Subscription)
	if len(t.subs) == 1 {
		t.noteOccupancyLocked(true)
	}
	j.Subscription.pinLocked(pins)
	if !restarted {
		j.DoneTo(j.Cursor)
	}
	return j, true
}

// resolveLocked returns where a subscription with that start begins. restarted says that
// the start is a position of another epoch, or ahead of the topic. Then it begins with
// the oldest message.
func (t *topic) resolveLocked(start wire.Start) (j Joined, restarted bool) {
	switch {
	case start.From == wire.FromNow, start.From != wire.FromPosition && t.isEphemeral():
		j.Cursor = t.head
	case start.From == wire.FromOldest:
		j.Cursor = t.oldestLocked()
	case start.From == wire.FromNewest:
		j.Cursor = t.newestFewLocked(int(start.Newest), t.head, time.Now())
	case !t.knowsLocked(start.Position()):
		j.Cursor, restarted = t.history.lost, true
	default:
		j.Cursor = start.After
	}
	j.Position = t.positionLocked(j.Cursor)
	j.Epoch = j.Position.Epoch
	if start.From == wire.FromPosition {
		j.Position = t.given(start)
	}
	j.Live = j.Cursor >= t.lastLocked() || t.gathering && j.Cursor >= t.mark // the fan-out offers what is above the mark
	j.Live = j.Live && !restarted
	return j, restarted
}

// knowsLocked reports whether a position is of the topic's epoch, and not ahead of the topic.
func (t *topic) knowsLocked(p wire.Position) bool {
	return p.Epoch == t.epoch && (p.Offset <= t.head || !t.partition.local && t.broker.log.Applied(p))
}

// given returns the position that a client gave. It shares no memory with the
// request: a substring would keep the whole of it.
func (t *topic) given(start wire.Start) wire.Position {
	p := wire.Position{Topic: t.name, Epoch: t.epoch, Offset: start.After}
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
	if s.index == left {
		return
	}
	s.pinLocked(false)
	last := len(t.subs) - 1
	t.subs[s.index] = t.subs[last]
	t.subs[s.index].index = s.index
	t.subs[last] = nil
	t.subs = t.subs[:last]
	s.index = left
	if s.paced {
		t.paced--
		t.trimLocked(time.Now())
	}
	if last == 0 {
		t.noteOccupancyLocked(false)
	}
	t.broker.countSubscriptions(-1)
}

// Pin sets whether the subscription keeps the topic from being forgotten. It reports
// false if the subscription has ended.
func (s *Subscription) Pin(pins bool) bool {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	if s.index != left {
		s.pinLocked(pins)
	}
	return s.index != left
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

// DoneTo says that the subscriber needs nothing more up to offset. The topic may be
// forgotten once all of it is done.
func (s *Subscription) DoneTo(offset uint64) { s.doneTo.Store(offset + 1) }

// Gone reports whether the subscription has left, or its topic was forgotten.
func (s *Subscription) Gone() bool {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	return s.index == left
}

// Read appends what how selects, gaps and messages in order. It returns the frames, the
// position up to which they go, and the offset of the topic's newest message. If the
// subscriber's position is of another epoch, or ahead of the topic, it returns only a
// gap, restarted.
func (s *Subscription) Read(dst []*frame.Frame, how Reading, now time.Time) (frames []*frame.Frame, at wire.Position, head uint64) {
	t := s.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	switch rule := t.rule.Load(); {
	case !how.Slow:
	case rule.Slow == DropOldest:
		how.Newest = rule.Keep
	case rule.Slow == Conflate:
		how.Conflate = true
	}
	if how.restarted = s.restarted; s.restarted {
		s.restarted, how.Limit.Frames = false, 1
		s.doneTo.Store(0)
	}
	how.losses = t.partition.lost()
	frames, at = t.history.read(dst, t.positionLocked(0), how, now)
	return frames, at, t.lastLocked()
}

// Rule returns the topic's rule.
func (s *Subscription) Rule() *TopicRule { return s.topic.rule.Load() }

// Get returns the message at that position, or nil and why it is lost.
func (s *Subscription) Get(at wire.Position, now time.Time) (*frame.Frame, wire.GapReason) {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	if at.Epoch != s.topic.epoch {
		return nil, wire.GapRestarted
	}
	f := s.topic.history.get(at.Offset)
	switch {
	case f == nil:
		return nil, s.topic.history.reason
	case f.Expired(now):
		return nil, wire.GapExpired
	}
	return f, ""
}

// Topic returns the topic's name.
func (s *Subscription) Topic() string { return s.topic.name }

// Head returns the offset of the topic's newest message.
func (s *Subscription) Head() uint64 {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	return s.topic.head
}
