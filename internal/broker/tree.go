package broker

import (
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/tidwall/btree"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A tree holds one value for each name: a topic's name or a pattern. Names that begin
// with the same segments share branches, so the cost of a lookup does not depend on the
// number of names. The zero tree is empty. The owner provides the lock.
//
// A tree of patterns finds the patterns that match a topic, the most specific first. A
// tree of topics finds the topics that match a pattern.
type tree[V any] struct {
	root branch[V]
}

// A branch is where the names that begin with the same segments continue.
type branch[V any] struct {
	next  map[string]*branch[V]
	value *V // of the name that ends here; nil: no name ends here
}

// The wildcards of patterns; see wire.CheckPattern.
const (
	anySegment = "*"
	anyRest    = ">"
)

// segmentsOf splits a name. The slice fits every valid name: a presence topic has one more.
func segmentsOf(name string) []string {
	return slices.AppendSeq(make([]string, 0, wire.MaxTopicSegments+1), strings.SplitSeq(name, "."))
}

// at returns the branch where the name ends. With create, it adds the branches that
// are missing, and returns how many; without, the branch may be nil.
func (t *tree[V]) at(name string, create bool) (at *branch[V], created int) {
	at = &t.root
	for segment := range strings.SplitSeq(name, ".") {
		next := at.next[segment]
		switch {
		case next != nil:
		case !create:
			return nil, 0
		default:
			next = &branch[V]{}
			created++
			if at.next == nil {
				at.next = make(map[string]*branch[V])
			}
			at.next[segment] = next
		}
		at = next
	}
	return at, created
}

// remove removes a name, and the branches that no other name needs. It returns the number
// of those.
func (t *tree[V]) remove(name string) (removed int) { return t.root.remove(segmentsOf(name)) }

func (b *branch[V]) remove(segments []string) (removed int) {
	if len(segments) == 0 {
		b.value = nil
		return 0
	}
	next := b.next[segments[0]]
	if next == nil {
		return 0
	}
	removed = next.remove(segments[1:])
	if next.value == nil && len(next.next) == 0 {
		delete(b.next, segments[0])
		removed++
	}
	return removed
}

// matching iterates over the values of the patterns that match the topic, in the order of
// wire.MoreSpecific.
func (t *tree[V]) matching(topic string) iter.Seq[*V] {
	return func(yield func(*V) bool) {
		if len(t.root.next) > 0 {
			t.root.matching(segmentsOf(topic), wire.ReservedTopic(topic), yield)
		}
	}
}

// matching reports whether to continue. If reserved is set, no wildcard matches the
// first of the segments.
func (b *branch[V]) matching(segments []string, reserved bool, yield func(*V) bool) bool {
	switch {
	case b == nil:
		return true
	case len(segments) == 0:
		return b.yield(yield)
	case !b.next[segments[0]].matching(segments[1:], false, yield):
		return false
	case reserved:
		return true
	}
	return b.next[anySegment].matching(segments[1:], false, yield) && b.next[anyRest].yield(yield)
}

func (b *branch[V]) yield(yield func(*V) bool) bool {
	return b == nil || b.value == nil || yield(b.value)
}

// names has the names of all topics twice: in a tree for patterns, and in a B-tree for
// batches of the list. The tree cannot return a batch: its branches are not sorted, and byte
// order is not the order of segments ("a" < "a-b" < "a.b").
type names struct {
	mu     sync.RWMutex // taken after a shard's lock
	tree   tree[topic]
	sorted btree.Set[string]
}

func (n *names) put(t *topic) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, _ := n.tree.at(t.name, true)
	at.value = t
	n.sorted.Insert(t.name)
}

func (n *names) remove(topic string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tree.remove(topic)
	n.sorted.Delete(topic)
}

// after returns the names in spans that follow the given one in byte order, at most limit.
func (n *names) after(name string, spans []span, limit int) (next []string) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, s := range spans {
		n.sorted.Ascend(max(s.from, name+afterName), func(topic string) bool {
			found := topic < s.to && len(next) < limit
			if found {
				next = append(next, topic)
			}
			return found
		})
	}
	return next
}

// A Search bounds the cost of all pattern searches of one request. It is for one
// goroutine.
type Search struct {
	limit   int // topics per pattern
	visits  int // branches left to visit
	recalls int // forgotten topics left to compare
	found   []string
}

// visitsPerTopic is how many branches a search may visit for each topic that it may
// find. A wildcard before other segments leads to many topics that do not match.
const visitsPerTopic = 16

// recallsOfAll is how many patterns a search may compare with all forgotten topics
// that are remembered.
const recallsOfAll = 8

// NewSearch returns a Search that finds more than the given number of topics for no pattern,
// except one.
func NewSearch(topics int) *Search {
	return &Search{limit: topics, visits: topics * visitsPerTopic, recalls: recallsOfAll * forgottenRemembered}
}

// Matching returns the names of the topics that the pattern matches, in order. If these are more
// than the search's number of topics, some are missing. ok is false if the search was too long:
// then it may have missed any.
func (b *Broker) Matching(pattern string, s *Search) (topics []string, ok bool) {
	s.found = nil
	b.names.mu.RLock()
	s.match(&b.names.tree.root, segmentsOf(pattern), true)
	b.names.mu.RUnlock()
	slices.Sort(s.found)
	return s.found, s.visits > 0 || len(s.found) > s.limit
}

// IsSpent reports whether the search finds nothing more.
func (s *Search) IsSpent() bool { return s.visits <= 0 }

func (s *Search) isOver() bool { return s.visits <= 0 || len(s.found) > s.limit }

// match finds the topics below a branch that match the rest of a pattern. At the first
// segment, wildcards do not match reserved topics.
func (s *Search) match(b *branch[topic], segments []string, first bool) {
	s.visits--
	switch {
	case b == nil || s.isOver():
		return
	case len(segments) == 0:
		if b.value != nil {
			s.found = append(s.found, b.value.name)
		}
		return
	case segments[0] != anySegment && segments[0] != anyRest:
		s.match(b.next[segments[0]], segments[1:], false)
		return
	}
	for segment, next := range b.next {
		switch {
		case s.isOver():
			return
		case first && wire.ReservedTopic(segment):
		case segments[0] == anyRest:
			if next.value != nil {
				s.found = append(s.found, next.value.name)
			}
			s.match(next, segments, false)
		default:
			s.match(next, segments[1:], false)
		}
	}
}
