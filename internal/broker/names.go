package broker

import (
	"slices"
	"sync"

	"github.com/tidwall/btree"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// names has the names of all topics by their tokens, so that those of a pattern
// are found without looking at every topic there is, and in order, for a page of them.
type names struct {
	mu     sync.RWMutex // after a shard's lock
	root   name
	sorted btree.Set[string]
}

// A name is where the names go on that begin with the same tokens.
type name struct {
	next  map[string]*name
	whole string // the topic that ends here; empty: none does
}

func (n *names) put(topic string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := &n.root
	for _, token := range wire.Tokens(topic) {
		next := at.next[token]
		if next == nil {
			next = &name{}
			if at.next == nil {
				at.next = make(map[string]*name)
			}
			at.next[token] = next
		}
		at = next
	}
	at.whole = topic
	n.sorted.Insert(topic)
}

func (n *names) remove(topic string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	path, tokens := []*name{&n.root}, make([]string, 0, wire.MaxTopicTokens)
	for _, token := range wire.Tokens(topic) {
		at := path[len(path)-1].next[token]
		if at == nil {
			return
		}
		path, tokens = append(path, at), append(tokens, token)
	}
	n.sorted.Delete(topic)
	path[len(path)-1].whole = ""
	for i := len(path) - 1; i > 0 && path[i].whole == "" && len(path[i].next) == 0; i-- {
		delete(path[i-1].next, tokens[i-1])
	}
}

// after returns the next names after the given one, at most so many.
func (n *names) after(name string, most int) (next []string) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	n.sorted.Ascend(name, func(topic string) bool {
		if topic != name {
			next = append(next, topic)
		}
		return len(next) < most
	})
	return next
}

// A Search bounds what looking for the topics of patterns may cost, for all that one
// caller looks for. It is for one goroutine.
type Search struct {
	limit   int // topics found
	visits  int // steps from token to token
	recalls int // looks at topics that were forgotten
	found   []string
}

// visitsPerTopic is how many steps may be made for each topic that may be found: a
// wildcard before other tokens leads to many topics that do not match.
const visitsPerTopic = 64

// recallsOfAll is how many patterns may each be held against all topics that were
// forgotten, as far as they are remembered.
const recallsOfAll = 8

// NewSearch returns a Search for at most so many topics.
func NewSearch(topics int) *Search {
	return &Search{limit: topics, visits: topics * visitsPerTopic, recalls: recallsOfAll * forgottenRemembered}
}

// Matching returns the names of the topics that the pattern stands for, in order. ok
// is false if there are more than the search may find, or too many to look at.
func (b *Broker) Matching(pattern string, s *Search) (topics []string, ok bool) {
	tokens := make([]string, 0, wire.MaxTopicTokens)
	for _, token := range wire.Tokens(pattern) {
		tokens = append(tokens, token)
	}
	s.found = nil
	b.names.mu.RLock()
	s.match(&b.names.root, tokens, true)
	b.names.mu.RUnlock()
	slices.Sort(s.found)
	return s.found, !s.over()
}

func (s *Search) over() bool { return s.visits <= 0 || len(s.found) > s.limit }

// match finds the topics from n on that the tokens left of a pattern stand for. first
// says that they are all of it: then no wildcard stands for what is the daemon's own.
func (s *Search) match(n *name, tokens []string, first bool) {
	s.visits--
	switch {
	case n == nil || s.over():
		return
	case len(tokens) == 0:
		s.take(n)
		return
	case tokens[0] != anyToken && tokens[0] != anyRest:
		s.match(n.next[tokens[0]], tokens[1:], false)
		return
	}
	for token, next := range n.next {
		switch {
		case s.over():
			return
		case first && wire.ReservedTopic(token):
		case tokens[0] == anyRest:
			s.takeAll(next)
		default:
			s.match(next, tokens[1:], false)
		}
	}
}

// recall reports whether so many topics that were forgotten may be looked at.
func (s *Search) recall(topics uint64) bool {
	if topics > uint64(s.recalls) {
		return false
	}
	s.recalls -= int(topics)
	return true
}

func (s *Search) take(n *name) {
	if n.whole != "" {
		s.found = append(s.found, n.whole)
	}
}

// takeAll finds every topic from n on.
func (s *Search) takeAll(n *name) {
	s.visits--
	s.take(n)
	for _, next := range n.next {
		if s.over() {
			return
		}
		s.takeAll(next)
	}
}
