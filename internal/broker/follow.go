package broker

import (
	"sync"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Follower hears of the topics that a pattern stands for and that are made
// while it follows: when the topic gets its first message. It may join from the
// topic's beginning (Born), but must not wait for a publisher.
//
// A topic that a subscription makes is told of with its first message, too: who
// subscribes may hold the very lock that a Follower needs.
type Follower interface {
	Made(topic string)
}

// follows has the followers by the tokens of their patterns, so that a new topic
// is not held against each of them.
type follows struct {
	mu   sync.RWMutex // taken after everything else, and never held over Made
	root follow
}

// A follow is where the patterns that begin with the same tokens go on.
type follow struct {
	next      map[string]*follow
	followers map[Follower]struct{} // of the pattern that ends here
}

// The wildcards of patterns; see wire.CheckPattern.
const (
	anyToken = "*"
	anyRest  = ">"
)

// Followers returns who follows a pattern that stands for the topic.
func (b *Broker) Followers(topic string) []Follower { return b.follows.of(topic) }

// Follow has f told of topics that are made. A pattern is followed once by each
// follower. The error is a *wire.Problem: there is no memory for more patterns.
func (b *Broker) Follow(pattern string, f Follower) error {
	if err := b.admitOverhead(); err != nil {
		return err
	}
	b.follows.mu.Lock()
	defer b.follows.mu.Unlock()
	at := &b.follows.root
	for _, token := range wire.Tokens(pattern) {
		next := at.next[token]
		if next == nil {
			next = &follow{}
			b.memory.follows.Add(tokenBytes)
			if at.next == nil {
				at.next = make(map[string]*follow)
			}
			at.next[token] = next
		}
		at = next
	}
	if at.followers == nil {
		at.followers = make(map[Follower]struct{})
	}
	at.followers[f] = struct{}{}
	b.memory.follows.Add(patternBytes)
	return nil
}

// Unfollow ends Follow. A call of Made that is under way may still arrive.
func (b *Broker) Unfollow(pattern string, f Follower) {
	b.follows.mu.Lock()
	defer b.follows.mu.Unlock()
	path := []*follow{&b.follows.root}
	var tokens []string
	for _, token := range wire.Tokens(pattern) {
		at := path[len(path)-1].next[token]
		if at == nil {
			return
		}
		path, tokens = append(path, at), append(tokens, token)
	}
	last := path[len(path)-1]
	if _, follows := last.followers[f]; !follows {
		return
	}
	delete(last.followers, f)
	b.memory.follows.Add(-patternBytes)
	for i := len(path) - 1; i > 0 && path[i].empty(); i-- {
		delete(path[i-1].next, tokens[i-1])
		b.memory.follows.Add(-tokenBytes)
	}
}

func (f *follow) empty() bool { return len(f.next) == 0 && len(f.followers) == 0 }

// of returns the followers of the patterns that stand for the topic.
func (f *follows) of(topic string) []Follower {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var tokens []string
	for _, token := range wire.Tokens(topic) {
		tokens = append(tokens, token)
	}
	return f.root.appendMatching(nil, tokens, wire.ReservedTopic(topic))
}

// appendMatching appends the followers of what matches the tokens that are left.
// With named, the first of them is matched by its name alone.
func (f *follow) appendMatching(dst []Follower, tokens []string, named bool) []Follower {
	if f == nil {
		return dst
	}
	if len(tokens) == 0 {
		return f.appendFollowers(dst)
	}
	dst = f.next[tokens[0]].appendMatching(dst, tokens[1:], false)
	if named {
		return dst
	}
	dst = f.next[anyToken].appendMatching(dst, tokens[1:], false)
	return f.next[anyRest].appendFollowers(dst)
}

func (f *follow) appendFollowers(dst []Follower) []Follower {
	if f != nil {
		for follower := range f.followers {
			dst = append(dst, follower)
		}
	}
	return dst
}

// tell has the followers of a topic told, once, when it gets its first message. A
// few are told by whoever publishes that, before it is there, so that they are live
// from the beginning. More are told beside: they read it from history.
func (b *Broker) tell(t *topic) {
	t.told.Do(func() {
		followers := b.follows.of(t.name)
		if len(followers) <= fewSubscribers {
			t.tell(followers)
			return
		}
		t.telling.Store(true) // until then it must not be forgotten
		b.fanOuts.Go(func() {
			t.tell(followers)
			t.telling.Store(false)
		})
	})
}

func (t *topic) tell(followers []Follower) {
	for _, f := range followers {
		f.Made(t.name)
	}
}
