package broker

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// memory is what the budget is about. Sums that are asked for at every publish are
// kept, not made.
type memory struct {
	history atomic.Int64  // messages that histories hold
	frames  frame.Account // their encodings; messages that only queues hold
	queues  atomic.Int64  // the queues themselves, and lists of unacked frames
	follows atomic.Int64  // patterns that are followed

	reclaiming sync.Mutex   // held by whoever makes room; before a shard's lock
	fullUntil  atomic.Int64 // Unix nanoseconds; looking for room is of no use before

	pressure atomic.Int32  // see Press
	pressed  chan struct{} // see Pressed; immutable
	shrunk   atomic.Int64  // the budget for now, if that is less than the settings say; 0: it is not
}

// What a topic and a subscription take by themselves: their structs, their names,
// and their places in maps and lists. Measured with 100,000 of each: 377 and 271
// bytes, with names of 22.
const (
	topicBytes        = 400
	subscriptionBytes = 288
)

// What a pattern takes that a session follows, and each token of it that no other
// pattern begins with. Measured with 90,000 of sixteen tokens: 6.1 KB each, and 1.0 KB
// where they shared all tokens.
const (
	patternBytes = 1024
	tokenBytes   = 352
)

// overhead is what topics, subscriptions and patterns take by themselves.
func (b *Broker) overhead() int64 {
	return b.topics.Load()*topicBytes + b.subscriptions.Load()*subscriptionBytes + b.memory.follows.Load()
}

// used is what counts against the budget.
func (b *Broker) used() int64 {
	m := &b.memory
	return m.history.Load() + m.frames.Encodings.Load() + m.frames.Pinned.Load() + m.queues.Load() + b.overhead()
}

func (m *memory) gauges(g *metrics.Gauges) {
	g.HistoryBytes = m.history.Load()
	g.FrameBytes = m.frames.Encodings.Load()
	g.QueueBytes = m.frames.Pinned.Load() + m.queues.Load()
}

// CountQueues adds to what the queues of sessions take.
func (b *Broker) CountQueues(bytes int) { b.memory.queues.Add(int64(bytes)) }

// admit makes sure that the budget has room for so many bytes. The error is a
// *wire.Problem: overloaded.
func (b *Broker) admit(bytes int) error {
	b.noticePressure()
	// Fast path: there is room.
	if b.used()+int64(bytes) <= b.budget() {
		return nil
	}
	if time.Now().UnixNano() >= b.memory.fullUntil.Load() && b.reclaim(int64(bytes)) {
		return nil
	}
	return b.usedUp("by what it may not let go of")
}

// admitOverhead makes sure that topics and subscriptions, which cannot make room, take
// no more than their share of the budget: half. The error is as admit's.
func (b *Broker) admitOverhead() error {
	if b.overhead() <= b.said()/2 {
		return nil
	}
	return b.usedUp("by topics and subscriptions, as far as they may")
}

func (b *Broker) usedUp(how string) *wire.Problem {
	b.metrics.Limited.WithLabelValues("memory").Inc()
	return wire.NewProblem(wire.CodeOverloaded, "retry later, or raise memory.budget",
		"the daemon's memory budget is used up %s", how).Retry(time.Second)
}

// fullFor is for how long it is not tried again to make room where there was none.
const fullFor = 100 * time.Millisecond

// slack is which part of the budget is made free beyond what is needed, so that not
// every publish has to look for room.
const slack = 16

// reclaim makes room for so many bytes and reports whether there is. Encodings go
// first: they can be made again. Then messages do, the oldest of all topics first,
// but for those that a fan-out has not offered yet.
func (b *Broker) reclaim(need int64) bool {
	b.memory.reclaiming.Lock()
	defer b.memory.reclaiming.Unlock()
	budget := b.budget()
	if b.used()+need <= budget {
		return true // someone else made room
	}
	b.each((*topic).forgetEncodings)
	if b.used()+need > budget {
		b.evictOldest(budget - budget/slack - need)
	}
	if b.used()+need > budget {
		b.memory.fullUntil.Store(time.Now().Add(fullFor).UnixNano())
		return false
	}
	return true
}

func (t *topic) forgetEncodings() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.history.len() {
		t.history.at(i).Forget()
	}
}

// evictOldest lets go of the oldest messages until no more than so much is used.
func (b *Broker) evictOldest(most int64) {
	var all byAge
	b.each(func(t *topic) {
		if accepted, ok := t.oldest(); ok {
			all = append(all, aged{t, accepted})
		}
	})
	heap.Init(&all)
	for len(all) > 0 && b.used() > most {
		if accepted, ok := all[0].topic.evictOldest(); ok {
			all[0].accepted = accepted
			heap.Fix(&all, 0)
		} else {
			heap.Pop(&all)
		}
	}
}

// evictedForMemory is what metrics say of a message that had to go for want of
// memory; its subscribers are told evicted.
const evictedForMemory = "memory"

// evictOldest lets go of the oldest message, and tells when the next was accepted;
// ok is false if there is none that may go.
func (t *topic) evictOldest() (accepted time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mayEvictLocked() {
		t.evictLocked(wire.GapEvicted, evictedForMemory)
	}
	if !t.mayEvictLocked() {
		return time.Time{}, false
	}
	return t.history.front().Accepted(), true
}

func (t *topic) oldest() (accepted time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mayEvictLocked() {
		return time.Time{}, false
	}
	return t.history.front().Accepted(), true
}

// mayEvictLocked reports whether there is an oldest message that the fan-out needs no
// more.
func (t *topic) mayEvictLocked() bool {
	return t.history.len() > 0 && t.history.front().Position().Offset <= t.mark
}

// byAge is a heap of topics by the age of their oldest message.
type byAge []aged

type aged struct {
	topic    *topic
	accepted time.Time
}

func (a byAge) Len() int           { return len(a) }
func (a byAge) Less(i, j int) bool { return a[i].accepted.Before(a[j].accepted) }
func (a byAge) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }

// Push is never called: nothing is added while room is made.
func (a *byAge) Push(any) { panic("BUG: a topic is added while room is made") }

// Pop implements heap.Interface.
func (a *byAge) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}
