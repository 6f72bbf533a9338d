package broker

import (
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// ReadTopic returns what the start's topic holds from there on, within limit, as
// frames; ok is false if there is no such topic. A start at now reads nothing.
func (b *Broker) ReadTopic(start wire.Start, limit Limit, now time.Time) (frames []*frame.Frame, ok bool) {
	t := b.find(start.Topic)
	if t == nil {
		return nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	j, restarted := t.settleLocked(start)
	how := Reading{Had: j.Position, After: j.Cursor, Limit: limit, restarted: restarted}
	frames, _ = t.history.read(frames, t.positionLocked(0), how, now)
	return frames, true
}

// Topic returns the state of a topic; ok is false if there is none of that name.
func (b *Broker) Topic(name string) (state wire.TopicState, ok bool) {
	t := b.find(name)
	if t == nil {
		return wire.TopicState{}, false
	}
	return t.state(), true
}

func (t *topic) state() wire.TopicState {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := wire.TopicState{
		Topic:         t.name,
		Position:      t.positionLocked(t.head),
		Oldest:        t.positionLocked(t.history.lost),
		Messages:      t.history.len(),
		Bytes:         t.history.bytes,
		Subscriptions: len(t.subs),
	}
	if n := t.history.len(); n > 0 {
		state.Time = t.history.at(n - 1).Message().Time
	}
	return state
}

// Topics lists at most limit topics that show lets through and whose names come
// after the given one, in byte order.
func (b *Broker) Topics(after string, limit int, show func(topic string) bool) wire.TopicList {
	found := b.topicsAfter(after, limit+1, show)
	list := wire.TopicList{Topics: []wire.TopicState{}}
	if len(found) > limit {
		found = found[:limit]
		list.Next = found[limit-1].name
	}
	for _, t := range found {
		list.Topics = append(list.Topics, t.state())
	}
	return list
}

// topicsAfter returns the first n topics after the given name, in order. It looks at a
// page of names at a time: others make topics meanwhile.
func (b *Broker) topicsAfter(after string, n int, show func(topic string) bool) (found []*topic) {
	for {
		names := b.names.after(after, n)
		for _, name := range names {
			if t := b.find(name); t != nil && show(name) {
				found = append(found, t)
			}
			if len(found) == n {
				return found
			}
		}
		if len(names) < n {
			return found
		}
		after = names[n-1]
	}
}
