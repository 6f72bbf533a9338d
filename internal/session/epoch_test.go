package session

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// beginEpoch begins epoch e2 of all topics, as a rolled-back log does.
func (k *kit) beginEpoch() {
	k.Helper()
	at := wire.Position{Epoch: "e2"}
	_, err := k.broker.Apply(broker.Entry{Op: broker.OpEpoch, Message: &wire.Message{Position: at}, State: &broker.State{}})
	require.NoError(k, err)
	synctest.Wait()
	k.epoch = at.Epoch
}

func TestANewEpochIsAnnouncedOnAQuietTopic(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("a", 3)
		s := k.open("a")
		waiting := k.park(s, 0)
		k.beginEpoch()
		waiting.wantFrames("gap(restarted a3-0)")
		k.publishN("a", 1)
		require.Equal(k, "a1", k.poll(s, 1))
	})
}

// Unacked messages of the old epoch become gaps: another message may have their number by
// now.
func TestUnackedMessagesOfAnotherEpochAreLost(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 3)
		require.Equal(k, "a1 a2 a3", k.poll(s, 0))
		epoch := k.epoch
		k.beginEpoch()
		k.publishN("a", 2)
		require.Equal(k, "gap(restarted a1-2) gap(restarted a2-3) gap(restarted a3-0) a1 a2", k.poll(s, 1))
		require.Equal(k, wire.Position{Topic: "a", Epoch: epoch, Offset: 1}, s.subs.get("a").ackedTo)
		require.Equal(k, "gap(restarted a2-3) gap(restarted a3-0) a1 a2", k.poll(s, 2))
		require.Equal(k, wire.Position{Topic: "a", Epoch: epoch, Offset: 2}, s.subs.get("a").ackedTo)
		require.Empty(k, k.poll(s, 6))
		require.Equal(k, wire.Position{Topic: "a", Epoch: "e2", Offset: 2}, s.subs.get("a").ackedTo)
	})
}

// A stream continues in the new epoch. Its unacked messages become gaps. The metrics
// count each gap when it is first sent, here to a client that reconnects twice.
func TestGapsOfUnackedMessagesOfAnotherEpochAreCounted(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 2)
		stream, err := s.Poll(0, false, time.Now())
		require.NoError(k, err)
		limit := frame.Limit{Frames: 10, Bytes: 1000}
		frames, err := stream.Take(k.Context(), limit, 0)
		require.NoError(k, err)
		require.Len(k, frames, 2)
		k.beginEpoch()
		frames, err = stream.Take(k.Context(), limit, 0)
		require.NoError(k, err)
		require.Len(k, frames, 1)
		stream.Done(time.Now())
		counted := func() float64 { return testutil.ToFloat64(k.registry.metrics.Gaps.WithLabelValues("restarted")) }
		require.Equal(k, 1.0, counted())
		for range 2 {
			require.Equal(k, "gap(restarted a0-1) gap(restarted a1-2) gap(restarted a2-0)", k.poll(s, 0))
			require.Equal(k, 3.0, counted())
		}
	})
}

// A paced subscription that was reading up to some offset does not wait for that offset
// in another epoch.
func TestAPaceEndsWithItsEpoch(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open()
		_, err := s.Change([]wire.Start{{Topic: "a", Every: time.Minute}}, nil, nil)
		require.NoError(k, err)
		k.publishN("a", 1)
		require.Equal(k, "a1", k.poll(s, 0))
		for _, key := range []string{"x", "y", "z"} {
			_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Key: key}, 0, time.Now())
			require.NoError(k, err)
		}
		time.Sleep(2 * time.Minute)
		said, err := k.tryPoll(s, 1, frame.Limit{Frames: 1, Bytes: 1000})
		require.NoError(k, err)
		require.Equal(k, "a2", said, "of three")
		k.beginEpoch()
		k.publishN("a", 1)
		require.Equal(k, "gap(restarted a2-0) a1", k.poll(s, 2))
		k.publishN("a", 1)
		time.Sleep(time.Minute)
		require.Equal(k, "a2", k.poll(s, 4))
	})
}

// A client resumes after a crash of the machine: the topics and the pattern say that
// messages may be lost.
func TestALossIsAnnouncedToTopicsAndPatterns(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("a.x", 3)
		before := fmt.Sprintf("a.*@EPOCH:%d", k.broker.PatternPosition("a.*").Offset)
		live := k.open("a.x")
		pattern, _ := k.openAll("a.*")
		waiting := k.park(live, 0)
		at := wire.Position{Epoch: k.epoch, Offset: 100}
		_, err := k.broker.Apply(broker.Entry{Op: broker.OpEpoch, Message: &wire.Message{Position: at}, State: &broker.State{Forgotten: 100, Lost: 100}})
		require.NoError(k, err)
		waiting.wantFrames("gap(lost a.x3-100)")
		require.Equal(k, "gap(lost a.x3-100)", k.poll(pattern, 0))
		k.publishN("a.x", 1)
		require.Equal(k, "a.x101", k.poll(live, 1))
		s, _ := k.openAll(before, "a.x@EPOCH:2")
		require.Equal(k, "gap(lost a.*0-100) a.x3 gap(lost a.x3-100) a.x101", k.poll(s, 0))
		k.registry.End(s)
		s, _ = k.openAll("a.*@EPOCH:100", "a.x@EPOCH:100")
		require.Equal(k, "a.x101", k.poll(s, 0), "it has the gap")
	})
}
