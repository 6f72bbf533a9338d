package session

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// publishKeys publishes a message with each key to topic a and lets the fan-outs finish.
func (k *kit) publishKeys(keys ...string) {
	k.Helper()
	for _, key := range keys {
		k.publishMessage(wire.Message{Key: key})
	}
}

// publishMessage publishes m to topic a.
func (k *kit) publishMessage(m wire.Message) {
	k.Helper()
	m.Position.Topic = "a"
	m.Data = []byte("1")
	_, err := k.broker.Publish(&m, 0, time.Now())
	require.NoError(k, err)
	synctest.Wait()
}

func slow(policy broker.Slow, keep int) broker.Config {
	return broker.Config{Rules: []broker.Rule{{Pattern: "a", Slow: policy, Keep: keep}}}
}

func TestDropOldestKeepsTheNewestForASlowSubscriber(t *testing.T) {
	story(t, slow(broker.DropOldest, 3), Config{Queue: 2}, func(k *kit) {
		s, healthy := k.open("a", "b"), k.open("a")
		for range 5 {
			k.publishN("a", 2)
			k.poll(healthy, k.sent(healthy))
		}
		k.publishN("b", 5)
		require.Equal(k, "a1 a2 gap(slow a2-7) "+span("a", 8, 10)+" "+span("b", 1, 5), k.poll(s, 0), "what was queued stays, and b resumes")
		require.Equal(k, "gap(slow a2-7) "+span("a", 8, 10)+" "+span("b", 1, 5), k.poll(s, 2), "what was sent never changes")
		require.EqualValues(k, 10, k.sent(healthy), "who is not slow gets all of it")
		k.publishN("a", 1)
		require.Equal(k, "a11", k.poll(s, 11), "it is live again")
	})
}

func (k *kit) sent(s *Session) uint64 { state, _ := s.State(time.Now()); return state.Sent }

func TestDropOldestDoesNotApplyToAResume(t *testing.T) {
	story(t, slow(broker.DropOldest, 1), Config{}, func(k *kit) {
		k.publishN("a", 4)
		require.Equal(k, span("a", 1, 4), k.poll(k.open("a@oldest"), 0))
		require.Equal(k, "a4", k.poll(k.open("a@EPOCH:3"), 0))
	})
}

func TestConflateKeepsTheNewestOfEachKeyForASlowSubscriber(t *testing.T) {
	story(t, slow(broker.Conflate, 0), Config{Queue: 1}, func(k *kit) {
		s := k.open("a")
		k.publishKeys("x", "x", "y", "x", "z", "y", "", "")
		want := "a1 gap(conflated a1-3) a4 a5 a6 gap(conflated a6-7) a8"
		require.Equal(k, want, k.poll(s, 0), "those without a key share one")
		require.Equal(k, want, k.poll(s, 0), "the same again")
		k.publishKeys("x")
		require.Equal(k, "a9", k.poll(s, 7))
	})
}

func TestConflatedMessagesAreReadInParts(t *testing.T) {
	story(t, slow(broker.Conflate, 0), Config{Queue: 1}, func(k *kit) {
		s := k.open("a")
		k.publishKeys("x", "x", "y", "x", "z")
		one := frame.Limit{Frames: 1, Bytes: 1 << 20}
		for ack, want := range []string{"a1", "gap(conflated a1-2)", "a3", "a4"} {
			got, err := k.tryPoll(s, uint64(ack), one)
			require.NoError(k, err)
			require.Equal(k, want, got)
		}
		k.publishKeys("z")
		require.Equal(k, "gap(conflated a4-5) a6", k.poll(s, 4), "and goes by what is the newest then")
	})
}

func TestConflationAndEvictionMakeOneGap(t *testing.T) {
	bc := slow(broker.Conflate, 0)
	bc.HistoryMessages = 2
	story(t, bc, Config{Queue: 1}, func(k *kit) {
		s := k.open("a")
		k.publishKeys("x", "y", "z", "x", "x")
		require.Equal(k, "a1 gap(slow a1-4) a5", k.poll(s, 0), "one gap, though for two reasons")
	})
}

func TestDisconnectEndsASlowSession(t *testing.T) {
	story(t, slow(broker.Disconnect, 0), Config{Queue: 2}, func(k *kit) {
		s, healthy := k.open("a", "b"), k.open("a")
		k.publishN("b", 1)
		k.publishN("a", 1)
		require.Equal(k, "b1 a1", k.poll(s, 0))
		k.poll(healthy, 0)
		k.publishN("a", 2)
		k.poll(healthy, 1)
		k.publishN("a", 1)
		_, err := k.tryPoll(s, 2, everything)
		require.ErrorIs(k, err, tooSlow("a"))
		problem, ok := errors.AsType[*wire.Problem](err)
		require.True(k, ok)
		require.Equal(k, wire.CodeSessionEnded, problem.Code)
		require.Contains(k, problem.Detail, `"a"`)
		_, err = k.registry.Get([]byte(s.ID()))
		require.ErrorIs(k, err, tooSlow("a"), "remembered")
		require.Equal(k, "a4", k.poll(healthy, 3))
		require.EqualValues(k, 1, k.registry.open.Load())
	})
}

func TestDisconnectEndsAPollWhileItAnswers(t *testing.T) {
	story(t, slow(broker.Disconnect, 0), Config{Queue: 2}, func(k *kit) {
		s := k.open("a")
		p, err := s.Poll(0, true, time.Now())
		require.NoError(k, err)
		k.publishN("a", 3)
		_, err = p.Take(t.Context(), everything, patience)
		require.ErrorIs(k, err, tooSlow("a"))
		problem, ok := errors.AsType[*wire.Problem](err)
		require.True(k, ok)
		require.Equal(k, "a@"+k.epoch+":0", problem.Positions[0].String(), "to reopen from")
		p.Done(time.Now())
	})
}

func TestADeletionIsAnnouncedToEverySubscriber(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 2}, func(k *kit) {
		live, behind, quiet := k.open("a"), k.open("a"), k.open("a")
		k.publishN("a", 3)
		require.Equal(k, span("a", 1, 3), k.poll(live, 0))
		waiting := k.park(live, 3)
		state, err := k.broker.Delete("a", time.Now())
		require.NoError(k, err)
		require.EqualValues(k, 4, state.Position.Offset)
		require.Zero(k, state.Messages)
		waiting.wantFrames("gap(deleted a3-4)")
		require.Equal(k, "a1 a2 gap(deleted a2-4)", k.poll(behind, 0), "what was queued had been published")
		k.publishN("a", 1)
		require.Equal(k, "a5", k.poll(live, 4))
		require.Equal(k, "a1 a2 gap(deleted a2-4) a5", k.poll(quiet, 0))
		require.Equal(k, "gap(deleted a2-4) a5", k.poll(k.open("a@EPOCH:2"), 0))
		_, err = k.broker.Delete("nowhere", time.Now())
		require.ErrorIs(k, err, broker.ErrNoTopic)
	})
}

// A gate blocks the fan-out.
type gate chan struct{}

func (g gate) Offer([]*frame.Frame, time.Time) { <-g }
func (gate) Missed()                           {}
func (gate) Forgotten()                        {}

func TestADeletionIsAnnouncedInOrder(t *testing.T) {
	for want, goesOn := range map[string]bool{"a1 gap(deleted a1-4) a5": true, "a1 gap(deleted a1-4)": false} {
		keepsItsPlace(t, want, goesOn)
	}
}

func keepsItsPlace(t *testing.T, want string, goesOn bool) {
	story(t, broker.Config{}, Config{InactivityTimeout: time.Hour}, func(k *kit) {
		g := make(gate)
		_, err := k.broker.Join(wire.Start{Topic: "a"}, g, true)
		require.NoError(k, err)
		sessions := []*Session{k.open("a"), k.open("a"), k.open("a")}
		go k.publish("a") // 1, whose fan-out waits in the gate
		synctest.Wait()
		k.publish("a")
		k.publish("a") // 2 and 3 are not offered yet
		_, err = k.broker.Delete("a", time.Now())
		require.NoError(k, err)
		if goesOn {
			k.publish("a") // 5
		}
		close(g)
		synctest.Wait()
		for _, s := range sessions {
			require.Equal(k, want, k.poll(s, 0))
			k.registry.End(s)
		}
		var gauges metrics.Gauges
		k.broker.Gauges(&gauges)
		require.Zero(k, gauges.Memory["queues"], "what came to queues after it was let go of is off the account again")
	})
}
