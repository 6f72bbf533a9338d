package broker

import (
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Delete empties the history of a topic. The deletion takes an offset of its own,
// so every subscriber, also one that had everything, gets a gap: deleted. What
// queues hold already had been published before. ok is false if there is no such
// topic.
func (b *Broker) Delete(name string, now time.Time) (state wire.TopicState, ok bool) {
	t := b.find(name)
	if t == nil {
		return wire.TopicState{}, false
	}
	for _, s := range t.empty() {
		s.to.Emptied()
	}
	return t.state(), true
}

// empty empties the history and returns who has to be told.
func (t *topic) empty() []*Subscription {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.head++
	t.mark, t.unsent, t.unsentBytes = t.head, 0, 0
	for t.history.len() > 0 {
		t.evictLocked(wire.GapDeleted, string(wire.GapDeleted))
	}
	t.history.lost, t.history.reason = t.head, wire.GapDeleted
	return append([]*Subscription(nil), t.subs...)
}
