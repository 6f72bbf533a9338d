package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAQueueIsBoundedInBytes(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		big := make([]byte, queueBytes/2)
		for range 5 {
			_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: big}, 0, time.Now())
			require.NoError(k, err)
			synctest.Wait()
		}
		require.Len(k, s.queue, 1, "two would exceed the bound")
		require.Equal(k, span("a", 1, 5), k.poll(s, 0), "the rest came from history")
		require.Zero(k, s.pinned)
		_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: make([]byte, 2*queueBytes)}, 0, time.Now())
		require.NoError(k, err)
		synctest.Wait()
		require.Len(k, s.queue, 1, "one frame always fits")
		require.Equal(k, "a6", k.poll(s, 5))
	})
}

func TestAMessageThatExpiresInTheQueueIsAGap(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 1)
		_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, time.Second, time.Now())
		require.NoError(k, err)
		k.publishN("a", 1)
		time.Sleep(time.Second)
		require.Equal(k, "a1 gap(expired a1-2) a3", k.poll(s, 0))
		require.Equal(k, "gap(expired a1-2) a3", k.poll(s, 1), "the gap never changes")
	})
}

// A queue that has room again must not take newer messages of a topic that is
// behind: they would overtake those in history.
func TestABehindTopicIsNotOfferedUntilItCaughtUp(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 6)
		got, err := k.tryPoll(s, 0, broker.Limit{Frames: 2, Bytes: 1 << 20})
		require.NoError(k, err)
		require.Equal(k, "a1 a2", got)
		k.publishN("a", 1)
		require.Equal(k, span("a", 3, 7), k.poll(s, 2))
	})
}

// The fan-out may lag behind a session that read the same messages from history,
// or that joined after them: such offers are dropped.
func TestWhatWasReadFromHistoryIsNotQueuedAgain(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("a", 3)
		s := k.open("a@oldest")
		late, ok := k.broker.ReadTopic(k.starts("a@oldest")[0], everything, time.Now())
		require.True(k, ok)
		require.Equal(k, span("a", 1, 3), k.poll(s, 0))
		s.subs["a"].Offer(late, time.Now())
		k.publishN("a", 1)
		require.Equal(k, "a4", k.poll(s, 3))
	})
}
