package broker

import (
	"maps"
	"slices"
	"sync"

	"github.com/pubsubd/pubsubd/internal/memory"
)

// A Follower is called for each new topic that its pattern matches, before the topic's
// first message is offered. It may join from the topic's beginning (born), but must not
// wait for a publisher.
//
// A topic that a subscription creates is announced when its first message is published:
// the subscriber may hold the lock that a Follower needs.
type Follower interface {
	Made(topic string)
}

// follows are the patterns with followers.
type follows struct {
	mu   sync.RWMutex // taken last; not held during Made
	tree tree[followers]
}

type followers map[Follower]bool

// Followers returns the followers of all patterns that match the topic.
func (b *Broker) Followers(topic string) (found []Follower) {
	b.follows.mu.RLock()
	defer b.follows.mu.RUnlock()
	for all := range b.follows.tree.matching(topic) {
		found = slices.AppendSeq(found, maps.Keys(*all))
	}
	return found
}

// Follow announces new topics that match the pattern to f. One follower follows a
// pattern once. The error is a *wire.Problem: there is no memory for more patterns.
func (b *Broker) Follow(pattern string, f Follower) error {
	if err := b.memory.AdmitTopics(); err != nil {
		return err
	}
	b.follows.mu.Lock()
	defer b.follows.mu.Unlock()
	at, created := b.follows.tree.at(pattern, true)
	if at.value == nil {
		at.value = &followers{}
	}
	(*at.value)[f] = true
	b.memory.Add(memory.Topics, int64(patternBytes+created*segmentBytes))
	return nil
}

// Unfollow ends Follow. A call of Made that has begun may still arrive.
func (b *Broker) Unfollow(pattern string, f Follower) {
	b.follows.mu.Lock()
	defer b.follows.mu.Unlock()
	at, _ := b.follows.tree.at(pattern, false)
	if at == nil || at.value == nil || !(*at.value)[f] {
		return
	}
	delete(*at.value, f)
	freed := patternBytes
	if len(*at.value) == 0 {
		freed += b.follows.tree.remove(pattern) * segmentBytes
	}
	b.memory.Add(memory.Topics, -int64(freed))
}
