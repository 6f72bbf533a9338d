package broker

import (
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Export calls to with entries from which a new broker can continue: those of ExportHeads,
// then those of ExportTopics. It stops at the first error, and returns it.
func (b *Broker) Export(to func(Entry) error) error {
	if err := b.ExportHeads(to); err != nil {
		return err
	}
	return b.ExportTopics(to)
}

// ExportHeads calls to with the epochs of the partitions. They are exact if no entry is
// applied meanwhile.
func (b *Broker) ExportHeads(to func(Entry) error) error {
	for i, p := range b.partitions {
		losses := p.lost()
		if len(losses) == 0 {
			losses = []loss{{}}
		}
		for _, l := range losses {
			at := wire.Position{Epoch: *p.epoch.Load(), Offset: p.floor.Load()}
			state := &State{Partition: i, Forgotten: p.forgotten.newest(), Lost: l.last}
			if l.first < l.last {
				state.Born = l.first
			}
			if err := to(Entry{Op: OpEpoch, Message: &wire.Message{Position: at}, State: state}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ExportTopics calls to with the topics and their messages, and the idempotency keys. A
// topic's messages follow the topic. Topics of local partitions are left out, and so are
// their keys. Entries may be applied meanwhile. If all entries since ExportHeads are applied
// again over what it got, nothing is missing.
//
// It includes topics without messages. Without its head, a topic would begin above the
// floor, and its subscribers would get a gap although nothing was lost.
func (b *Broker) ExportTopics(to func(Entry) error) error {
	var topics []*topic // to must not be called under a lock
	b.each(func(t *topic) {
		if !t.partition.local {
			topics = append(topics, t)
		}
	})
	for _, t := range topics {
		t.mu.Lock()
		at, state := t.positionLocked(t.head), &State{Born: t.born, Lost: t.history.lost, Reason: t.history.reason}
		if t.head == t.born { // a file has born, lost and head in this order
			state.Lost = max(state.Lost, t.born)
		} else {
			state.Born = min(t.born, state.Lost)
		}
		frames := make([]*frame.Frame, t.history.count)
		for i := range frames {
			frames[i] = t.history.at(i)
		}
		t.mu.Unlock()
		if err := to(Entry{Op: OpTopic, Message: &wire.Message{Position: at}, State: state}); err != nil {
			return err
		}
		for _, f := range frames {
			if err := to(Entry{Op: OpPublish, Message: f.Message(), TTL: f.TTL, Accepted: f.Accepted}); err != nil {
				return err
			}
		}
	}
	for _, k := range b.keys.logged() {
		if err := to(Entry{Op: OpKey, Message: &wire.Message{Position: k.Position, Time: k.Time}, Key: k.Key}); err != nil {
			return err
		}
	}
	return nil
}
