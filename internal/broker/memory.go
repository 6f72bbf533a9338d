package broker

import (
	"container/heap"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The memory of a topic and of a subscription itself: struct, name, and entries in maps
// and lists. Measured with 100,000 of each: 377 and 271 bytes, with names of 22 bytes.
const (
	topicBytes        = 400
	subscriptionBytes = 288
)

// BytesOf returns the memory of a subscription to the topic, with the topic's name.
func BytesOf(topic string) int { return subscriptionBytes + len(topic) }

// The memory of a pattern that a session follows, and of each branch of the tree of
// patterns. Measured with patterns of sessions: 660 bytes each if they share all segments, and
// 280 to 300 for each segment that they do not share.
const (
	patternBytes = 656
	segmentBytes = 288
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
	(*Broker)(h).evict(enough, 0, evictedForMemory, func(t *topic) int64 { return t.history.at(0).Accepted.UnixNano() })
}

// EvictLargest evicts messages until enough returns true, the oldest of the largest topics
// first. It leaves each topic its newest message, and those that were not offered yet. A
// log calls it to keep its files small.
func (b *Broker) EvictLargest(enough func() bool) {
	b.evict(enough, 1, evictedForDisk, func(t *topic) int64 { return -int64(t.history.bytes) })
}

// kind returns the kind of memory of the topic's messages.
func (t *topic) kind() memory.Kind {
	if t.partition.local {
		return memory.Local
	}
	return memory.History
}

// LiveBytes returns about how many bytes a log needs for what Export returns.
func (b *Broker) LiveBytes() int64 {
	return b.memory.Of(memory.History) + (b.topics.Load()-b.localTopics.Load())*topicBytes/4 + int64(b.keys.countLogged())*keyBytes
}

// keyBytes is about the size of an idempotency key in a log.
const keyBytes = 128

// The labels in the metrics of messages that were evicted because the memory budget was
// full, or the log's files were too large. Subscribers get the reason evicted.
const (
	evictedForMemory = "memory"
	evictedForDisk   = "disk"
)

// evict evicts messages one by one until enough returns true, each from the topic of the
// lowest rank. It leaves each topic the newest messages, so many as keep says, and those that
// were not offered yet.
func (b *Broker) evict(enough func() bool, keep int, why string, rankLocked func(*topic) int64) {
	var all ranking
	mayLocked := func(t *topic) bool {
		return t.history.count > keep && t.history.at(0).Position().Offset <= t.mark
	}
	b.each(func(t *topic) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mayLocked(t) && (why != evictedForDisk || !t.partition.local) {
			all = append(all, ranked{t, rankLocked(t)})
		}
	})
	heap.Init(&all)
	for len(all) > 0 && !enough() {
		t := all[0].topic
		t.mu.Lock()
		if mayLocked(t) {
			t.evictLocked(wire.GapEvicted, why)
		}
		more := mayLocked(t)
		if more {
			all[0].rank = rankLocked(t)
		}
		t.mu.Unlock()
		if more {
			heap.Fix(&all, 0)
		} else {
			heap.Pop(&all)
		}
	}
}

// ranking is a heap of topics by their rank.
type ranking []ranked

type ranked struct {
	topic *topic
	rank  int64
}

func (r ranking) Len() int           { return len(r) }
func (r ranking) Less(i, j int) bool { return r[i].rank < r[j].rank }
func (r ranking) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }

// Push is never called: evict adds no topic to the heap.
func (r *ranking) Push(any) { panic("BUG: a topic is added to the heap") }

// Pop implements heap.Interface.
func (r *ranking) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}
