package broker

import (
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// ReadTopic returns what the start's topic holds from there on, within limit, as
// frames; ok is false if there is no such topic. A start at now reads nothing.
func (b *Broker) ReadTopic(start wire.Start, limit Limit, now time.Time) (frames []*wire.Frame, ok bool) {
	t := b.find(start.Topic)
	if t == nil {
		return nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.settleLocked(start)
	if j.Restart != nil {
		frames = append(frames, wire.NewGapFrame(RestartedGap(*j.Restart, t.positionLocked(j.Cursor))))
		limit.Frames--
	}
	how := Reading{Had: j.Cursor, After: j.Cursor, Limit: limit}
	frames, _ = t.history.read(frames, t.positionLocked(0), how, now)
	return frames, true
}

// RestartedGap is the gap for a position that cannot be honoured: it is of
// another epoch, or ahead of the topic. Delivery goes on after at.
func RestartedGap(given, at wire.Position) wire.Gap {
	return wire.Gap{Topic: at.Topic, Reason: wire.GapRestarted, After: given, Position: at}
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

// topicsAfter returns the first n topics after the given name, in order. It keeps
// no more than a few pages of them while it looks at all.
func (b *Broker) topicsAfter(after string, n int, show func(topic string) bool) []*topic {
	var found []*topic
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.RLock()
		for name, t := range s.topics {
			if name > after && show(name) {
				found = append(found, t)
			}
			if len(found) >= 4*n {
				found = firstTopics(found, n)
			}
		}
		s.mu.RUnlock()
	}
	return firstTopics(found, n)
}

// firstTopics sorts topics by name and returns the first n.
func firstTopics(topics []*topic, n int) []*topic {
	slices.SortFunc(topics, func(x, y *topic) int { return strings.Compare(x.name, y.name) })
	return topics[:min(n, len(topics))]
}
