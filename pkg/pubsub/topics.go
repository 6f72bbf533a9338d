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
//
// A pattern has a mark, too, and so has every topic that it stands for and that
// something was heard of.
type topicMark struct {
	start wire.Start // immutable; where it began

	// Owned by the loop.
	named    bool // by the caller; else only a pattern stands for it
	known    bool // the position is: the daemon has answered
	received wire.Position

	// Guarded by Subscription.mu.
	returned wire.Position
	removed  bool
}

// has reports whether the topic's subscriber already has the item: it is at or
// below the position, in the same epoch. Only a gap "restarted" leads back: the
// topic's numbering is behind the position, so the gap starts where we are. A gap that
// says that the topic is left out is news even where we are.
func (m *topicMark) has(item Item) bool {
	position := item.Position()
	if position.Epoch != m.received.Epoch || position.Offset > m.received.Offset {
		return false
	}
	news := item.Gap != nil && (item.Gap.Reason == wire.GapRestarted || item.Gap.IsLeftOut())
	return !news || item.Gap.After != m.received
}

// resume returns where a new session or poll begins.
func (m *topicMark) resume() wire.Start {
	if !m.known {
		return m.start
	}
	start := wire.StartAfter(m.received)
	start.Every = m.start.Every
	return start
}

// A topicList is the topics of a subscription, in the order they were added. It is
// immutable but for its marks; a change makes a new list, which shares the marks
// of the topics that stay.
type topicList struct {
	marks    []*topicMark
	byName   map[string]*topicMark
	patterns []*topicMark // of marks
}

// newTopicList checks the starts: each topic once, and by the rules.
func newTopicList(starts []wire.Start) (*topicList, error) {
	list := newList(len(starts))
	for _, start := range starts {
		if _, err := wire.ParseStart(start.String()); err != nil {
			return nil, err
		}
		if list.byName[start.Topic] != nil {
			return nil, fmt.Errorf("topic %q is listed twice", start.Topic)
		}
		list.keep(&topicMark{start: start})
	}
	list.name(list.marks)
	return list, nil
}

func newList(n int) *topicList { return &topicList{byName: make(map[string]*topicMark, n)} }

func (l *topicList) keep(m *topicMark) {
	l.marks = append(l.marks, m)
	l.byName[m.start.Topic] = m
	if wire.IsPattern(m.start.Topic) {
		l.patterns = append(l.patterns, m)
	}
}

// name makes new marks the caller's own, but for topics that a pattern stands for:
// those belong to that.
func (l *topicList) name(fresh []*topicMark) {
	for _, m := range fresh {
		m.named = l.patternOf(m.start.Topic) == nil
	}
}

// matched returns the mark of a topic, which is made if a pattern stands for the
// topic; else nil. A topic that is met for the first time has no position yet.
// The caller holds Subscription.mu if the subscription has begun.
func (l *topicList) matched(topic string) *topicMark {
	if m := l.byName[topic]; m != nil {
		return m
	}
	pattern := l.patternOf(topic)
	if pattern == nil {
		return nil
	}
	m := &topicMark{start: wire.Start{Topic: topic, Every: pattern.start.Every}, known: true}
	m.received.Topic, m.returned.Topic = topic, topic
	l.keep(m)
	return m
}

// patternOf returns the mark of the most specific pattern that stands for the topic,
// or nil. No pattern stands for a pattern.
func (l *topicList) patternOf(topic string) (best *topicMark) {
	if wire.IsPattern(topic) {
		return nil
	}
	for _, m := range l.patterns {
		if wire.Matches(m.start.Topic, topic) && (best == nil || wire.MoreSpecific(m.start.Topic, best.start.Topic)) {
			best = m
		}
	}
	return best
}

// An edit is what a Change comes to: topics that are present and stay, and topics
// that are absent and are to be removed, are left out of it.
type edit struct {
	next    *topicList
	add     []wire.Start
	remove  []string
	removed []*topicMark // those of remove, and of what is there by a removed pattern
}

// edit returns what removing and then adding these topics changes. Naming a topic
// in both moves it to a new start; removing a topic that is there by a pattern
// changes nothing.
func (l *topicList) edit(add []wire.Start, remove []string) edit {
	e := edit{next: newList(len(l.marks) + len(add))}
	var matched []*topicMark
	for _, m := range l.marks {
		switch {
		case !m.named:
			matched = append(matched, m)
		case slices.Contains(remove, m.start.Topic):
			e.remove = append(e.remove, m.start.Topic)
			e.removed = append(e.removed, m)
		default:
			e.next.keep(m)
		}
	}
	for _, m := range matched { // which stay as long as a pattern does that was there
		if e.next.patternOf(m.start.Topic) != nil {
			e.next.keep(m)
		} else {
			e.removed = append(e.removed, m)
		}
	}
	var fresh []*topicMark
	for _, start := range add {
		if e.next.byName[start.Topic] == nil {
			fresh = append(fresh, &topicMark{start: start})
			e.next.keep(fresh[len(fresh)-1])
			e.add = append(e.add, start)
		}
	}
	e.next.name(fresh)
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
// answered, and patterns the latest, and lets go of topics that it has forgotten. The
// caller holds Subscription.mu if the subscription has begun.
func (l *topicList) settle(positions []wire.Position) {
	for _, position := range positions {
		m := l.matched(position.Topic)
		switch {
		case m == nil:
		case !m.known || m.received.Epoch == "":
			m.known, m.received, m.returned = true, position, position
		case wire.IsPattern(position.Topic):
			m.received = position // returned is older, and goes as well
		case !m.named && position.Offset == 0 && m.received.Offset > 0:
			l.forget(m)
		}
	}
}

// forget lets go of a topic that a pattern stands for: the daemon has nothing of it,
// and the pattern's position is enough to resume from.
func (l *topicList) forget(m *topicMark) {
	delete(l.byName, m.start.Topic)
	l.marks = slices.DeleteFunc(l.marks, func(other *topicMark) bool { return other == m })
}

// checkPositions returns an error unless positions, of an answer with this status, answer starts: one for each, and
// besides them only those of topics that patterns stand for. A session's hello has
// them by name, all else in the order asked for.
func checkPositions(status int, starts []wire.Start, positions []wire.Position) error {
	told := make(map[string]bool, len(positions))
	for _, p := range positions {
		told[p.Topic] = true
	}
	var patterns []string
	wrong := 0
	for _, s := range starts {
		if !told[s.Topic] {
			wrong++
		}
		delete(told, s.Topic)
		if wire.IsPattern(s.Topic) {
			patterns = append(patterns, s.Topic)
		}
	}
	for topic := range told {
		if !slices.ContainsFunc(patterns, func(pattern string) bool { return wire.Matches(pattern, topic) }) {
			wrong++
		}
	}
	if wrong > 0 {
		return unexpected(status, "with %d positions of topics other than the %d requested ones", len(positions), len(starts))
	}
	return nil
}
