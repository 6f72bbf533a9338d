package session

import (
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
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

func TestAMessageThatOnlyAQueueHoldsIsCounted(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 1}, Config{Queue: 4}, func(k *kit) {
		memory := func() int64 {
			var g metrics.Gauges
			k.broker.Gauges(&g)
			return g.QueueBytes
		}
		s, gone, idle := k.open("a"), k.open("a"), k.open("b")
		k.publishN("a", 4)
		one := (&wire.Message{Data: []byte("1")}).Size()
		places := int64(2 * 4 * unsafe.Sizeof(queued{}))
		require.EqualValues(k, places+int64(3*one), memory(), "three that two queues share; the history has the fourth")
		require.Equal(k, span("a", 1, 4), k.poll(s, 0))
		require.GreaterOrEqual(k, memory(), places+int64(3*one), "the other queue has them still")
		k.registry.End(gone)
		k.registry.End(s)
		require.Zero(k, memory())
		waiting := k.park(idle, 0)
		k.registry.End(idle)
		waiting.wantProblem(wire.CodeSessionEnded)
		require.Zero(k, memory())
	})
}

// What an answer has no room for is carried to the next; a session may end between.
func TestWhatIsCarriedIsCountedToTheEnd(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 1}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 4)
		got, err := k.tryPoll(s, 0, broker.Limit{Frames: 1, Bytes: 1 << 20})
		require.NoError(k, err)
		require.Equal(k, "a1", got)
		require.NotNil(k, s.carried.frame)
		k.registry.End(s)
		var g metrics.Gauges
		k.broker.Gauges(&g)
		require.Zero(k, g.QueueBytes)
	})
}
