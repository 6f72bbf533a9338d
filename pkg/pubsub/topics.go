package pubsub

import (
	"fmt"
	"slices"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A topicMark is one topic of a subscription with the two positions that it has:
// what was received is what a broken connection resumes from; what was returned
// by Next is what the caller resumes from.
//
// A topic that is removed and added again gets a new mark, so that an item which
// waits in the buffer with the old one is known as stale.
type topicMark struct {
	start wire.Start // immutable; where it began

	// Owned by the loop.
	known    bool // the position is: the daemon has answered
	received wire.Position

	// Guarded by Subscription.mu.
	returned wire.Position
	removed  bool
}

// has reports whether the topic's subscriber already has the item: it is at or
// below the position, in the same epoch. Only a gap "restarted" leads back: the
// topic's numbering is behind the position, so the gap starts where we are.
func (m *topicMark) has(item Item) bool {
	position := item.Position()
	if position.Epoch != m.received.Epoch || position.Offset > m.received.Offset {
		return false
	}
	return item.Gap == nil || item.Gap.Reason != wire.GapRestarted || item.Gap.After != m.received
}

// resume returns where a new session or poll begins.
func (m *topicMark) resume() wire.Start {
	if m.known {
		return wire.StartAfter(m.received)
	}
	return m.start
}

// A topicList is the topics of a subscription, in the order they were added. It is
// immutable but for its marks; a change makes a new list, which shares the marks
// of the topics that stay.
type topicList struct {
	marks  []*topicMark
	byName map[string]*topicMark
}

// newTopicList checks the starts: each topic once, and by the rules.
func newTopicList(starts []wire.Start) (*topicList, error) {
	list := &topicList{byName: make(map[string]*topicMark, len(starts))}
	for _, start := range starts {
		if _, err := wire.ParseStart(start.String()); err != nil {
			return nil, err
		}
		if list.byName[start.Topic] != nil {
			return nil, fmt.Errorf("topic %q is named twice", start.Topic)
		}
		list.add(start)
	}
	return list, nil
}

func (l *topicList) add(start wire.Start) {
	m := &topicMark{start: start}
	l.marks = append(l.marks, m)
	l.byName[start.Topic] = m
}

// An edit is what a Change comes to: topics that are present and stay, and topics
// that are absent and are to be removed, are left out of it.
type edit struct {
	next    *topicList
	add     []wire.Start
	remove  []string
	removed []*topicMark // the marks of remove
}

// edit returns what removing and then adding these topics changes. Naming a topic
// in both moves it to a new start.
func (l *topicList) edit(add []wire.Start, remove []string) edit {
	e := edit{next: &topicList{byName: make(map[string]*topicMark, len(l.marks)+len(add))}}
	for _, m := range l.marks {
		if slices.Contains(remove, m.start.Topic) {
			e.remove = append(e.remove, m.start.Topic)
			e.removed = append(e.removed, m)
			continue
		}
		e.next.marks = append(e.next.marks, m)
		e.next.byName[m.start.Topic] = m
	}
	for _, start := range add {
		if e.next.byName[start.Topic] == nil {
			e.next.add(start)
			e.add = append(e.add, start)
		}
	}
	return e
}

// empty reports whether the edit changes nothing.
func (e edit) empty() bool { return len(e.add) == 0 && len(e.remove) == 0 }

// starts returns where a new session or poll of the list begins.
func (l *topicList) starts() []wire.Start {
	starts := make([]wire.Start, len(l.marks))
	for i, m := range l.marks {
		starts[i] = m.resume()
	}
	return starts
}

// settle gives the topics that are new in the list the positions that the daemon
// answered. The caller holds Subscription.mu if the subscription has begun.
func (l *topicList) settle(positions []wire.Position) {
	for _, position := range positions {
		if m := l.byName[position.Topic]; m != nil && !m.known {
			m.known, m.received, m.returned = true, position, position
		}
	}
}

// checkPositions returns an error unless positions answer starts: one for each,
// in order.
func checkPositions(starts []wire.Start, positions []wire.Position) error {
	same := slices.EqualFunc(starts, positions, func(s wire.Start, p wire.Position) bool { return s.Topic == p.Topic })
	if !same {
		return fmt.Errorf("%w: %d positions of other topics than the %d asked for", errMalformed, len(positions), len(starts))
	}
	return nil
}
