package broker

import (
	"slices"
	"sync"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// names has the names of all topics by their tokens, so that those of a pattern
// are found without looking at every topic there is.
type names struct {
	mu   sync.RWMutex // after a shard's lock
	root name
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
	path[len(path)-1].whole = ""
	for i := len(path) - 1; i > 0 && path[i].whole == "" && len(path[i].next) == 0; i-- {
		delete(path[i-1].next, tokens[i-1])
	}
}

// Matching returns the names of at most limit topics that the pattern stands for, in
// order.
func (b *Broker) Matching(pattern string, limit int) []string {
	tokens := make([]string, 0, wire.MaxTopicTokens)
	for _, token := range wire.Tokens(pattern) {
		tokens = append(tokens, token)
	}
	b.names.mu.RLock()
	found := b.names.root.appendMatching(nil, tokens, limit, true)
	b.names.mu.RUnlock()
	slices.Sort(found)
	return found
}

// appendMatching appends the topics that the tokens left of a pattern stand for,
// until there are as many as limit. first says that they are all of it: then no
// wildcard stands for what is the daemon's own.
func (n *name) appendMatching(dst []string, tokens []string, limit int, first bool) []string {
	switch {
	case n == nil || len(dst) >= limit:
		return dst
	case len(tokens) == 0:
		return n.appendWhole(dst)
	case tokens[0] != anyToken && tokens[0] != anyRest:
		return n.next[tokens[0]].appendMatching(dst, tokens[1:], limit, false)
	}
	for token, next := range n.next {
		switch {
		case first && wire.ReservedTopic(token):
		case tokens[0] == anyRest:
			dst = next.appendAll(dst, limit)
		default:
			dst = next.appendMatching(dst, tokens[1:], limit, false)
		}
		if len(dst) >= limit {
			break
		}
	}
	return dst
}

func (n *name) appendWhole(dst []string) []string {
	if n.whole == "" {
		return dst
	}
	return append(dst, n.whole)
}

// appendAll appends every topic from here on.
func (n *name) appendAll(dst []string, limit int) []string {
	dst = n.appendWhole(dst)
	for _, next := range n.next {
		if len(dst) >= limit {
			return dst
		}
		dst = next.appendAll(dst, limit)
	}
	return dst
}
