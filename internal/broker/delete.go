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
	if t == nil || !t.empty() {
		return wire.TopicState{}, false
	}
	return t.state(), true
}

// empty empties the history, and has the fan-out tell so: in one order with what it
// offers, nobody takes a newer message for the next. It reports false if the topic
// was forgotten.
func (t *topic) empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.forgotten {
		return false
	}
	t.head++
	t.mark, t.unsent, t.unsentBytes = t.head, 0, 0
	for t.history.len() > 0 {
		t.evictLocked(wire.GapDeleted, string(wire.GapDeleted))
	}
	t.history.lost, t.history.reason = t.head, wire.GapDeleted
	if len(t.subs) > 0 {
		t.emptied = true
		t.maybeStartLocked()
	}
	return true
}

// maybeStartLocked starts a fan-out, unless one is running.
func (t *topic) maybeStartLocked() {
	if !t.fanning {
		t.fanning = true
		t.broker.fanOuts.Go(t.fanOut)
	}
}
