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

// A heard notes of which topics it was told.
type heard struct {
	mu     sync.Mutex
	topics []string
}

func (h *heard) Made(topic string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.topics = append(h.topics, topic)
}

// The tree of tokens finds whom wire.Matches would, whoever came and went.
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
	type place struct {
		pattern string
		to      *heard
	}
	var places []place
	for range 2000 {
		if len(places) > 0 && r.IntN(3) == 0 {
			i := r.IntN(len(places))
			b.Unfollow(places[i].pattern, places[i].to)
			places = append(places[:i], places[i+1:]...)
		} else if pattern := name("a", "b", "_c", "*", ">"); wire.CheckPattern(pattern) == nil {
			places = append(places, place{pattern, &heard{}})
			require.NoError(t, b.Follow(pattern, places[len(places)-1].to))
		}
		topic := name("a", "b", "_c")
		var want []Follower
		for _, p := range places {
			if wire.Matches(p.pattern, topic) {
				want = append(want, p.to)
			}
		}
		require.ElementsMatch(t, want, b.Followers(topic), topic)
	}
	for _, p := range places {
		b.Unfollow(p.pattern, p.to)
	}
	require.True(t, b.follows.tree.root.isEmpty(), "nothing is left of patterns that nobody follows")
	require.Zero(t, b.memory.Of(memory.Topics))
	b.Unfollow("never.followed", &heard{})
	require.Zero(t, b.memory.Of(memory.Topics))
}

func TestATopicIsToldOfOnceAndBeforeItsFirstMessage(t *testing.T) {
	b := New(Config{}, metrics.New("test"), time.Now())
	h := &heard{}
	require.NoError(t, b.Follow("a.*", h))
	_, err := b.Join(wire.Start{Topic: "a.joined"}, &recorder{}, true)
	require.NoError(t, err)
	require.Empty(t, h.topics, "nobody has published to it")
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

func TestATopicThatIsForgottenLeavesThoseWhoDoNotPinIt(t *testing.T) {
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

// A slowTeller is told, and takes its time.
type slowTeller chan struct{}

func (s slowTeller) Made(string) { <-s }

func TestATopicIsNotForgottenBeforeItsFollowersHeardOfIt(t *testing.T) {
	now := time.Now()
	b := New(Config{HistoryAge: time.Second}, metrics.New("test"), now)
	held := make(slowTeller)
	require.NoError(t, b.Follow("a.*", held))
	for range fewSubscribers {
		require.NoError(t, b.Follow("a.*", &heard{}))
	}
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "a.x"}}, 0, now)
	require.NoError(t, err, "nobody holds a publisher up")
	b.Sweep(now.Add(time.Minute))
	require.EqualValues(t, 1, b.topics.Load())
	close(held)
	b.Close()
	b.Sweep(now.Add(time.Minute))
	require.Zero(t, b.topics.Load())
}
