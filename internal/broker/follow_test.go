package broker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A heard is a Follower that records its calls.
type heard struct {
	mu     sync.Mutex
	topics []string
}

func (h *heard) Made(topic string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.topics = append(h.topics, topic)
}

// The tree finds the followers that wire.Matches finds, after random changes.
func TestFollowersAreThoseWhosePatternMatches(t *testing.T) {
	b := New(Config{}, metrics.New("test"), time.Now())
	r := rand.New(rand.NewPCG(1, 2))
	name := func(tokens ...string) string {
		parts := make([]string, 1+r.IntN(3))
		for i := range parts {
			parts[i] = tokens[r.IntN(len(tokens))]
		}
		return strings.Join(parts, ".")
	}
	type follow struct {
		pattern string
		to      *heard
	}
	var all []follow
	for range 2000 {
		if len(all) > 0 && r.IntN(3) == 0 {
			i := r.IntN(len(all))
			b.Unfollow(all[i].pattern, all[i].to)
			all = append(all[:i], all[i+1:]...)
		} else if pattern := name("a", "b", "_c", "*", ">"); wire.CheckPattern(pattern) == nil {
			all = append(all, follow{pattern, &heard{}})
			require.NoError(t, b.Follow(pattern, all[len(all)-1].to))
		}
		topic := name("a", "b", "_c")
		var want []Follower
		for _, p := range all {
			if wire.Matches(p.pattern, topic) {
				want = append(want, p.to)
			}
		}
		require.ElementsMatch(t, want, b.Followers(topic), topic)
	}
	for _, p := range all {
		b.Unfollow(p.pattern, p.to)
	}
	require.Empty(t, b.follows.tree.root.next, "patterns without followers are removed")
	require.Zero(t, b.memory.Of(memory.Topics))
	b.Unfollow("never.followed", &heard{})
	require.Zero(t, b.memory.Of(memory.Topics))
}

func TestATopicIsAnnouncedOnceBeforeItsFirstMessage(t *testing.T) {
	b := New(Config{}, metrics.New("test"), time.Now())
	h := &heard{}
	require.NoError(t, b.Follow("a.*", h))
	_, err := b.Join(wire.Start{Topic: "a.joined"}, &recorder{}, true)
	require.NoError(t, err)
	require.Empty(t, h.topics, "it has no message")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for j := range 5 {
				_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: fmt.Sprintf("a.%d", (i+j)%5)}}, 0, time.Now())
				require.NoError(t, err)
			}
		})
	}
	all.Wait()
	require.ElementsMatch(t, []string{"a.0", "a.1", "a.2", "a.3", "a.4"}, h.topics)
}

func TestForgettingATopicEndsUnpinnedSubscriptions(t *testing.T) {
	now := time.Now()
	b := New(Config{}, metrics.New("test"), now)
	loose, err := b.Join(wire.Start{Topic: "a"}, &recorder{}, false)
	require.NoError(t, err)
	pinned, err := b.Join(wire.Start{Topic: "a"}, &recorder{}, true)
	require.NoError(t, err)
	b.Sweep(now)
	require.False(t, loose.Gone())
	require.True(t, pinned.Pin(false))
	b.Sweep(now)
	require.True(t, loose.Gone() && pinned.Gone())
	require.False(t, loose.Pin(true), "too late")
	loose.Leave()
	require.Zero(t, b.subscriptions.Load())
	require.Zero(t, b.topics.Load())
}

// A slowFollower blocks until it is closed.
type slowFollower chan struct{}

func (s slowFollower) Made(string) { <-s }

func TestATopicIsNotForgottenBeforeItIsAnnounced(t *testing.T) {
	now := time.Now()
	b := New(Config{HistoryAge: time.Second}, metrics.New("test"), now)
	held := make(slowFollower)
	require.NoError(t, b.Follow("a.*", held))
	for range fewSubscribers {
		require.NoError(t, b.Follow("a.*", &heard{}))
	}
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "a.x"}}, 0, now)
	require.NoError(t, err, "a follower does not block a publisher")
	b.Sweep(now.Add(time.Minute))
	require.EqualValues(t, 1, b.topics.Load())
	close(held)
	b.Close()
	b.Sweep(now.Add(time.Minute))
	require.Zero(t, b.topics.Load())
}
