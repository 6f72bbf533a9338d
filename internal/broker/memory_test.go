package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// holds returns the offsets that a topic holds, and why the last lost one was lost.
func holds(b *Broker, topic string) (offsets []uint64, reason wire.GapReason) {
	t := b.find(topic)
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.history.count {
		offsets = append(offsets, t.history.at(i).Position().Offset)
	}
	return offsets, t.history.reason
}

func publishSized(t *testing.T, b *Broker, topic string, bytes int) error {
	t.Helper()
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: make([]byte, bytes)}, 0, time.Now())
	return err
}

func TestTheOldestMessagesOfAllTopicsAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New("test")
		b := New(Config{MemoryBudget: 64 << 10}, m, time.Now())
		for i := range 8 {
			time.Sleep(time.Millisecond)
			require.NoError(t, publishSized(t, b, "old", 1000))
			time.Sleep(time.Millisecond)
			require.NoError(t, publishSized(t, b, fmt.Sprintf("other.%d", i), 1000))
		}
		require.Zero(t, evicted(t, m, "memory"))
		time.Sleep(time.Millisecond)
		for range 34 {
			require.NoError(t, publishSized(t, b, "new", 1000))
			require.LessOrEqual(t, b.memory.Used(), int64(64<<10))
		}
		require.Positive(t, evicted(t, m, "memory"))
		old, why := holds(b, "old")
		require.NotContains(t, old, uint64(1))
		require.Equal(t, wire.GapEvicted, why)
		others, _ := holds(b, "other.0")
		require.Empty(t, others, "the oldest of both topics")
		for i := range 8 {
			held, _ := holds(b, fmt.Sprintf("other.%d", i))
			require.Equal(t, len(held) == 1, len(old) >= 8-i, "none was evicted before an older one: %d %v", i, old)
		}
		newest, _ := holds(b, "new")
		require.Len(t, newest, 34)
	})
}

func evicted(t *testing.T, m *metrics.Metrics, why string) float64 {
	t.Helper()
	families, err := m.Registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, sample := range f.GetMetric() {
			if f.GetName() == "pubsubd_history_evicted_total" && sample.GetLabel()[0].GetValue() == why {
				return sample.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// A log's files are too large: the largest topics lose their oldest messages, and each topic
// keeps its newest one.
func TestTheLargestTopicsLoseTheirOldestMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New("test")
		b := New(Config{}, m, time.Now())
		require.NoError(t, publishSized(t, b, "quiet", 100_000))
		for range 10 {
			require.NoError(t, publishSized(t, b, "small", 100))
			require.NoError(t, publishSized(t, b, "large", 1000))
			require.NoError(t, publishSized(t, b, "larger", 2000))
		}
		require.NoError(t, b.Tell("_presence.a", "k", make([]byte, 50_000), time.Now()))
		before := b.LiveBytes()
		require.Greater(t, before, int64(131_000))
		b.EvictLargest(func() bool { return b.LiveBytes() < before-12_000 })
		require.InDelta(t, before-12_000, b.LiveBytes(), 2500)
		held := func(topic string) int {
			state, _ := b.Topic(topic)
			return state.Messages
		}
		require.Equal(t, []int{1, 10}, []int{held("quiet"), held("small")})
		require.InDelta(t, 9, held("large"), 1)
		require.InDelta(t, 4, held("larger"), 1)
		require.EqualValues(t, 20-held("large")-held("larger"), evicted(t, m, "disk"))
		require.Regexp(t, `^gap\(evicted 0-\d\) `, read(t, b, "larger@EPOCH:0", 2))
		own := wire.PresenceTopic("room")
		_, err := b.Watch(own, time.Now())
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, b.Tell(own, "", []byte("1"), time.Now()))
		}
		before = b.LiveBytes()
		require.NoError(t, b.Tell(own, "", []byte("1"), time.Now()))
		require.Equal(t, before, b.LiveBytes(), "no log has it")
		b.EvictLargest(func() bool { return false })
		require.Equal(t, 4, held(own))
		for _, topic := range []string{"quiet", "small", "large", "larger"} {
			require.Equal(t, 1, held(topic))
		}
		consistent(t, b)
	})
}

func TestEncodingsAreDroppedBeforeMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New("test")
		b := New(Config{MemoryBudget: 64 << 10}, m, time.Now())
		for range 20 {
			require.NoError(t, publishSized(t, b, "a", 1000))
		}
		frames, _ := b.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, frame.Limit{Frames: 100, Bytes: 1 << 20}, time.Now())
		for _, f := range frames {
			f.Chunk(frame.NDJSON)
			f.Whole(&frame.Head{})
		}
		require.Greater(t, b.memory.Used(), int64(64<<10))
		b.Sweep(time.Now())
		held, _ := holds(b, "a")
		require.Len(t, held, 20)
		require.Zero(t, b.memory.Of(memory.Encodings))
		require.NotEmpty(t, frames[0].Bytes(frame.NDJSON), "it is made again")
	})
}

func TestMessagesAreNotEvictedBeforeTheyAreOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{MemoryBudget: 64 << 10}, metrics.New("test"), time.Now())
		release := make(chan struct{})
		for range fewSubscribers + 1 { // so many that the publisher does not fan out itself
			_, err := b.Join(wire.Start{Topic: "a"}, &stuck{release: release}, true)
			require.NoError(t, err)
		}
		var err error
		taken := 0
		for ; err == nil && taken < 1000; taken++ {
			err = publishSized(t, b, "a", 1000)
		}
		require.ErrorContains(t, err, "memory.budget")
		require.Greater(t, taken, 40, "all fit up to the budget")
		close(release)
		synctest.Wait()
		require.ErrorContains(t, publishSized(t, b, "a", 1000), "memory.budget", "MakeRoom does not run again so soon")
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, publishSized(t, b, "a", 1000), "the messages can be evicted now")
		b.Close()
	})
}

func TestMemoryOfTopicsAndSubscriptionsCounts(t *testing.T) {
	b := New(Config{MemoryBudget: 64 << 10}, metrics.New("test"), time.Now())
	var subs []Joined
	for i := range 1000 {
		j, err := b.Join(wire.Start{Topic: fmt.Sprintf("hostile.%d", i)}, &recorder{}, true)
		if err != nil {
			require.ErrorContains(t, err, "memory.budget")
			break
		}
		subs = append(subs, j)
	}
	require.InDelta(t, 64<<10/2/(topicBytes+subscriptionBytes), len(subs), 2, "half of the budget is for messages")
	var err error
	for i := 0; i < 3 && err == nil; i++ { // a topic without a subscription may still fit
		err = publishSized(t, b, fmt.Sprintf("mine.%d", i), 10)
	}
	require.ErrorContains(t, err, "memory.budget")
	for _, j := range subs {
		j.Leave()
	}
	b.Sweep(time.Now().Add(time.Hour))
	require.Zero(t, b.memory.Used(), "topics without subscribers are forgotten")
	require.NoError(t, publishSized(t, b, "mine", 10))
}

func TestMemoryOfPatternsCounts(t *testing.T) {
	b := New(Config{MemoryBudget: 1 << 20}, metrics.New("test"), time.Now())
	var h heard
	n, err := 0, error(nil)
	for ; err == nil; n++ {
		err = b.Follow(fmt.Sprintf("*.a%d.b.c", n), &h)
	}
	require.ErrorContains(t, err, "memory.budget")
	require.InDelta(t, 1<<20/2/(patternBytes+3*segmentBytes), n, 3, "half of the budget is for messages")
	require.ErrorContains(t, publishSized(t, b, "mine", 10), "memory.budget")
	for i := range n {
		b.Unfollow(fmt.Sprintf("*.a%d.b.c", i), &h)
	}
	require.Zero(t, b.memory.Used())
	require.NoError(t, publishSized(t, b, "mine", 10))
}

// There may be a million topics. One more field takes 32 bytes more of each: the next size that Go
// allocates.
func TestATopicFitsTheSizeThatGoAllocates(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(topic{}), uintptr(288))
}
