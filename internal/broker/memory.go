package broker

import (
	"container/heap"
	"time"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The memory of a topic and of a subscription itself: struct, name, and entries in maps
// and lists. Measured with 100,000 of each: 377 and 271 bytes, with names of 22 bytes.
const (
	topicBytes        = 400
	subscriptionBytes = 288
)

// The memory of a pattern that a session follows, and of each branch of the tree of
// patterns. Measured with 90,000 of sixteen tokens: 6.1 KB each, and 1.0 KB if they
// shared all tokens.
const (
	patternBytes = 1024
	tokenBytes   = 352
)

// countTopics adds to the number of topics, and to their memory.
func (b *Broker) countTopics(n int64) (topics int64) {
	b.memory.Add(memory.Topics, n*topicBytes)
	return b.topics.Add(n)
}

// countSubscriptions adds to the number of subscriptions, and to their memory.
func (b *Broker) countSubscriptions(n int64) (subscriptions int64) {
	b.memory.Add(memory.Topics, n*subscriptionBytes)
	return b.subscriptions.Add(n)
}

// histories is the Broker as its memory account sees it.
type histories Broker

// ForgetEncodings implements memory.Histories.
func (h *histories) ForgetEncodings() { (*Broker)(h).each((*topic).forgetEncodings) }

func (t *topic) forgetEncodings() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.history.count {
		t.history.at(i).Forget()
	}
}

// EvictOldest implements memory.Histories. It does not evict messages that were not
// offered yet.
func (h *histories) EvictOldest(enough func() bool) {
	b := (*Broker)(h)
	var all byAge
	b.each(func(t *topic) {
		if accepted, ok := t.oldest(false); ok {
			all = append(all, aged{t, accepted})
		}
	})
	heap.Init(&all)
	for len(all) > 0 && !enough() {
		if accepted, ok := all[0].topic.oldest(true); ok {
			all[0].accepted = accepted
			heap.Fix(&all, 0)
		} else {
			heap.Pop(&all)
		}
	}
}

// evictedForMemory is the label in the metrics of messages that were evicted because the
// memory budget was full. Subscribers get the reason evicted.
const evictedForMemory = "memory"

// oldest returns when the oldest message was accepted, after it has evicted one if evict
// is set. ok is false if no message can be evicted.
func (t *topic) oldest(evict bool) (accepted time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if evict && t.mayEvictLocked() {
		t.evictLocked(wire.GapEvicted, evictedForMemory)
	}
	if !t.mayEvictLocked() {
		return time.Time{}, false
	}
	return t.history.front().Accepted(), true
}

// mayEvictLocked reports whether there is an oldest message, and it was offered.
func (t *topic) mayEvictLocked() bool {
	return t.history.count > 0 && t.history.front().Position().Offset <= t.mark
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

// Push is never called: EvictOldest adds no topic to the heap.
func (a *byAge) Push(any) { panic("BUG: a topic is added to the heap") }

// Pop implements heap.Interface.
func (a *byAge) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}
