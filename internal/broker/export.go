package broker

import (
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Export calls to with entries that, applied to a new broker, make it continue as this
// one: with its epochs, its topics with what they hold, and its idempotency keys. A
// topic's messages follow the topic. Close must have returned: a message that is
// published meanwhile may be missing. Export stops at the first error, and returns it.
//
// Topics that hold nothing are exported, too: without its head, a topic would begin
// above the floor, and its subscribers would get a gap where nothing was lost.
func (b *Broker) Export(to func(Entry) error) error {
	for i, p := range b.partitions {
		at := wire.Position{Epoch: *p.epoch.Load(), Offset: p.floor.Load()}
		state := &State{Partition: i, Forgotten: p.forgotten.total()}
		if err := to(Entry{Op: OpEpoch, Message: &wire.Message{Position: at}, State: state}); err != nil {
			return err
		}
	}
	for i := range b.shards {
		for _, t := range b.shards[i].all() {
			if err := t.export(to); err != nil {
				return err
			}
		}
	}
	for _, k := range b.keys.all() {
		if err := to(Entry{Op: OpKey, Message: &wire.Message{Position: k.Position, Time: k.Time}, Key: k.Key}); err != nil {
			return err
		}
	}
	return nil
}

func (s *shard) all() []*topic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	topics := make([]*topic, 0, len(s.topics))
	for _, t := range s.topics {
		topics = append(topics, t)
	}
	return topics
}

func (t *topic) export(to func(Entry) error) error {
	at, state, frames := t.exported()
	if err := to(Entry{Op: OpTopic, Message: &wire.Message{Position: at}, State: &state}); err != nil {
		return err
	}
	for _, f := range frames {
		if err := to(Entry{Op: OpPublish, Message: f.Message(), TTL: f.TTL(), Accepted: f.Accepted()}); err != nil {
			return err
		}
	}
	return nil
}

// exported returns what the topic is, and what it holds.
func (t *topic) exported() (at wire.Position, state State, frames []*frame.Frame) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state = State{Born: t.born, Lost: t.history.lost, Reason: t.history.reason}
	return t.positionLocked(t.head), state, t.history.appendAfter(nil, t.history.lost)
}
