package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// typing makes the topic a ephemeral, and those that end with typing.
var typing = broker.Config{Rules: []broker.Rule{
	{Name: "a", Pattern: "a", Ephemeral: true},
	{Name: "typing", Pattern: "chat.*.typing", Ephemeral: true},
}}

// The queue of a session buffers two messages between its polls. The others are lost, with one gap,
// and then the session is live again.
func TestASlowSubscriberOfAnEphemeralTopicGetsAGap(t *testing.T) {
	story(t, typing, Config{Queue: 2}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 5)
		require.Equal(k, "a1 a2 gap(slow a2-5)", k.poll(s, 0))
		k.publishN("a", 1)
		require.Equal(k, "a6", k.poll(s, 3))
		require.Equal(k, "gap(evicted a5-6)", k.poll(s, 3), "what was sent cannot be sent again")
		waiting := k.park(s, 4)
		k.publishN("a", 1)
		waiting.wantFrames("a7")
	})
}

func TestASlowSubscriberOfAnEphemeralTopicMayBeDisconnected(t *testing.T) {
	rules := []broker.Rule{{Name: "a", Pattern: "a", Ephemeral: true, Slow: broker.Disconnect}}
	story(t, broker.Config{Rules: rules}, Config{Queue: 2}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 3)
		require.NotNil(k, s.ended)
	})
}

// A client draws the cursors of others five times a second. Each time it gets the newest one of each.
func TestARateOnAnEphemeralTopicKeepsTheNewestOfEachKey(t *testing.T) {
	story(t, typing, Config{}, func(k *kit) {
		s := k.openPaced(200*time.Millisecond, "a")
		waiting := k.park(s, 0)
		k.publishKeys("x")
		waiting.wantFrames("a1")
		waiting = k.park(s, 1)
		k.publishKeys("x", "y", "x")
		waiting.wantFrames("gap(conflated a1-2) a3 a4")
		k.registry.End(s)
		state, _ := k.broker.Topic("a")
		require.Zero(k, state.Messages, "nobody needs them now")
	})
}

// Own messages are left out without a gap, although nothing holds the others.
func TestEchoesOfAnEphemeralTopicAreLeftOut(t *testing.T) {
	story(t, typing, Config{}, func(k *kit) {
		s := k.openNoEcho("me", "a")
		k.publishAs("me", "you")
		require.Equal(k, "a2", k.poll(s, 0))
	})
}

// A pattern covers both kinds, also topics that are created later.
func TestAPatternCoversEphemeralTopics(t *testing.T) {
	story(t, typing, Config{}, func(k *kit) {
		s, _ := k.openAll("chat.>")
		time.Sleep(2 * time.Minute)
		k.broker.Sweep(time.Now())
		position := k.broker.PatternPosition("chat.>")
		for range 2 {
			waiting := k.park(s, s.window.sent)
			k.publishN("chat.1.typing", 1)
			<-waiting.done
			require.Regexp(k, `^chat\.1\.typing\d+$`, waiting.said)
			require.Empty(k, k.poll(s, s.window.sent))
			time.Sleep(2 * time.Minute)
			k.broker.Sweep(time.Now())
			require.False(k, k.broker.Has("chat.1.typing"))
		}
		require.Equal(k, position, k.broker.PatternPosition("chat.>"), "no ephemeral topic moves it")
	})
}

// A log on disk has kept its epoch over a restart, and the ephemeral topics have begun anew. Only
// they have a gap, whether or not they exist by then.
func TestAPatternResumesAroundEphemeralTopics(t *testing.T) {
	story(t, typing, Config{}, func(k *kit) {
		k.publishN("chat.1.lines", 2)
		k.publishN("chat.1.typing", 2)
		k.publishN("chat.2.typing", 2)
		s, positions := k.openAll("chat.>@EPOCH:0", "chat.1.lines@EPOCH:1", "chat.1.typing@k3:7", "chat.3.typing@k3:7")
		require.Equal(k, []string{"chat.>:0", "chat.1.lines:1", "chat.1.typing:7", "chat.3.typing:7", "chat.2.typing:2"}, positions)
		require.Equal(k, "chat.1.lines2 gap(restarted chat.1.typing7-2) gap(restarted chat.3.typing7-0)", k.poll(s, 0))
		k.publishN("chat.3.typing", 1)
		require.Equal(k, "chat.3.typing1", k.poll(s, 3))
	})
}

// The server forgets an ephemeral topic while a client is away. If the client had all of it, nothing
// is announced, and the topic is not created again; else it gets one gap.
func TestAForgottenEphemeralTopicIsAnnouncedOnlyWithALoss(t *testing.T) {
	story(t, typing, Config{}, func(k *kit) {
		k.publishN("chat.1.typing", 2)
		epoch := "@" + k.broker.Epoch("chat.1.typing")
		time.Sleep(2 * time.Minute)
		k.broker.Sweep(time.Now())
		s, positions := k.openAll("chat.>@EPOCH:1", "chat.1.typing"+epoch+":2")
		require.Equal(k, []string{"chat.>:1", "chat.1.typing:0"}, positions)
		require.Empty(k, k.poll(s, 0))
		require.False(k, k.broker.Has("chat.1.typing"))
		s, _ = k.openAll("chat.>@EPOCH:1", "chat.1.typing"+epoch+":1")
		require.Equal(k, "gap(evicted chat.1.typing1-2)", k.poll(s, 0))
		s, _ = k.openAll("chat.>@k3:0", "chat.2.typing@k3:9")
		require.Equal(k, "gap(restarted chat.>0-1)", k.poll(s, 0))
	})
}

// A client resumes a pattern, and names a topic that was forgotten. It is created again before the
// search for the pattern's topics, so the message counts as lost.
func TestAForgottenEphemeralTopicIsCreatedWhileAPatternResumes(t *testing.T) {
	story(t, typing, Config{}, func(k *kit) {
		k.publishN("chat.1.typing", 2)
		epoch := k.broker.Epoch("chat.1.typing")
		time.Sleep(2 * time.Minute)
		k.broker.Sweep(time.Now())
		s := k.open("other.>")
		c := &change{session: s, joined: make(map[string]bool), had: map[string]uint64{"chat.1.typing": 2}}
		k.publishN("chat.1.typing", 1)
		s.mu.Lock()
		require.NoError(k, c.joinMatchedLocked(nil, "chat.1.typing", k.starts("chat.>@EPOCH:1")[0]))
		s.adoptLocked(c.fresh...)
		s.mu.Unlock()
		require.Equal(k, wire.Position{Topic: "chat.1.typing", Epoch: epoch, Offset: 2}, c.matched[0])
		require.Equal(k, "gap(evicted chat.1.typing2-3)", k.poll(s, 0))
	})
}

// A client polls without a session, each time from its position. That costs nothing more with a rule for
// other topics.
func TestOpeningFromAPositionCostsNothingMoreWithEphemeralRules(t *testing.T) {
	var allocations [2]float64
	for i, config := range []broker.Config{{}, typing} {
		story(t, config, Config{}, func(k *kit) {
			k.publishN("b", 1)
			starts := k.starts("b@EPOCH:1")
			allocations[i] = testing.AllocsPerRun(100, func() {
				s, _, err := k.registry.OpenEphemeral(Opening{Topics: starts}, time.Now())
				require.NoError(k, err)
				k.registry.End(s)
			})
		})
	}
	require.Equal(t, allocations[0], allocations[1])
}
