package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// publishFor publishes a message that lives for some seconds; 0: as long as history.
func publishFor(t *testing.T, b *Broker, topic string, seconds int) {
	t.Helper()
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, time.Duration(seconds)*time.Second, time.Now())
	require.NoError(t, err)
}

// readNewest reads the newest messages of a topic, and returns after which offset.
func readNewest(t *testing.T, b *Broker, topic string, n int32) (string, uint64) {
	t.Helper()
	frames, from := b.ReadTopic(wire.Start{Topic: topic, From: wire.FromNewest, Newest: n}, frame.Limit{Frames: 1000, Bytes: 1 << 20}, time.Now())
	require.Equal(t, topic, from.Topic)
	return summary(frames), from.Offset
}

func TestTheNewestMessagesThatAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{HistoryMessages: 4})
		wants := func(topic string, n int32, want string, after uint64) {
			t.Helper()
			got, from := readNewest(t, b, topic, n)
			require.Equal(t, want, got)
			require.Equal(t, after, from)
		}
		j, err := b.Join(wire.Start{Topic: "a", From: wire.FromNewest, Newest: 3}, &recorder{}, true)
		require.NoError(t, err)
		require.True(t, j.Live, "nothing is held")
		wants("a", 3, "", 0)
		for range 6 {
			publish(t, b, "a")
		}
		wants("a", 1, "6", 5)
		wants("a", 3, "4 5 6", 3)
		wants("a", 4, "3 4 5 6", 2)
		wants("a", 1000, "3 4 5 6", 2) // no gap for what was evicted
		_, err = b.Delete("a", time.Now())
		require.NoError(t, err)
		wants("a", 3, "", 7)
		publish(t, b, "a")
		wants("a", 3, "8", 7)

		for _, seconds := range []int{1, 0, 1, 0, 1} {
			publishFor(t, b, "expiring", seconds)
		}
		wants("expiring", 2, "4 5", 3)
		time.Sleep(time.Second)
		wants("expiring", 1, "4 gap(expired 4-5)", 3)
		wants("expiring", 2, "2 gap(expired 2-3) 4 gap(expired 4-5)", 1)
		wants("expiring", 9, "2 gap(expired 2-3) 4 gap(expired 4-5)", 1)
		publishFor(t, b, "expired", 1)
		time.Sleep(time.Second)
		wants("expired", 2, "", 1)
	})
}

// What the log lost before the newest messages is no loss for a client that begins with
// them.
func TestTheNewestMessagesBeginBehindALoss(t *testing.T) {
	b := newBroker(Config{})
	begin(t, b, "e1")
	for _, at := range []string{"a@e1:3", "a@e1:5"} {
		apply(t, b, OpPublish, at)
	}
	loseEntries(t, b, 100)
	got, from := readNewest(t, b, "a", 1)
	require.Equal(t, "5 gap(lost 5-100)", got)
	require.EqualValues(t, 3, from)
	apply(t, b, OpPublish, "a@e1:120")
	got, from = readNewest(t, b, "a", 1)
	require.Equal(t, "120", got)
	require.EqualValues(t, 100, from)
}

// newestTopic returns a topic with 1000 messages, of which the oldest has a TTL unless it is 0.
// The log had as many losses before as are remembered.
func newestTopic(t testing.TB, oldestTTL time.Duration) *topic {
	b := newBroker(Config{HistoryMessages: 1000})
	for i := range maxLosses {
		b.partitions[0].lose(loss{first: uint64(i + 1), last: uint64(i + 1)})
	}
	for ttl, i := oldestTTL, 0; i < 1000; ttl, i = 0, i+1 {
		_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, ttl, time.Now())
		require.NoError(t, err)
	}
	return b.find("a")
}

// BenchmarkNewest finds where the newest 1000 messages of a topic begin.
func BenchmarkNewest(b *testing.B) {
	for name, ttl := range map[string]time.Duration{"none with TTL": 0, "one with TTL": time.Hour} {
		b.Run(name, func(b *testing.B) {
			topic, now := newestTopic(b, ttl), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				topic.newestFewLocked(1000, topic.head, now)
			}
		})
	}
}
