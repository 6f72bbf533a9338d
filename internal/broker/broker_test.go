package broker

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func newBroker(cfg Config) *Broker { return New(cfg, metrics.New("test"), time.Now()) }

// publish publishes a one-letter message and returns its offset.
func publish(t *testing.T, b *Broker, topic string) uint64 {
	t.Helper()
	p, err := b.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
	require.NoError(t, err)
	return p.Position.Offset
}

// A recorder is a Subscriber that records the offsets that it is offered.
type recorder struct {
	mu      sync.Mutex
	offsets []uint64
}

func (*recorder) Missed() {}

func (*recorder) Forgotten() {}

func (r *recorder) Offer(frames []*frame.Frame, _ time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range frames {
		r.offsets = append(r.offsets, f.Position().Offset)
	}
}

func (r *recorder) got() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]uint64(nil), r.offsets...)
}

// summary writes frames as "1 2 gap(evicted 2-4) 5".
func summary(frames []*frame.Frame) string {
	var words []string
	for _, f := range frames {
		if g := f.Gap(); g != nil {
			words = append(words, fmt.Sprintf("gap(%s %d-%d)", g.Reason, g.After.Offset, g.Position.Offset))
		} else {
			words = append(words, fmt.Sprint(f.Position().Offset))
		}
	}
	return strings.Join(words, " ")
}

func read(t *testing.T, b *Broker, start string, limit int) string {
	t.Helper()
	s, err := wire.ParseStart(strings.ReplaceAll(start, "EPOCH", b.Epoch("any")))
	require.NoError(t, err)
	frames, from := b.ReadTopic(s, frame.Limit{Frames: limit, Bytes: 1 << 20}, time.Now())
	require.NotZero(t, from, "topic %q exists", s.Topic)
	return summary(frames)
}

func TestSubscribersGetWhatIsPublishedAfterTheyJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		publish(t, b, "a")
		r := &recorder{}
		j, err := b.Join(wire.Start{Topic: "a"}, r, true)
		require.NoError(t, err)
		require.Equal(t, uint64(1), j.Position.Offset, "now is after the first message")
		require.True(t, j.Live)
		publish(t, b, "a")
		publish(t, b, "other")
		publish(t, b, "a")
		synctest.Wait()
		require.Equal(t, []uint64{2, 3}, r.got())
		j.Leave()
		j.Leave() // has no effect
		publish(t, b, "a")
		b.Close()
		require.Equal(t, []uint64{2, 3}, r.got(), "nothing after leaving")
		state, ok := b.Topic("a")
		require.True(t, ok)
		require.Zero(t, state.Subscriptions)
	})
}

func TestOffsetsRiseWhileOtherSubscribersJoinAndLeave(t *testing.T) {
	b := newBroker(Config{HistoryMessages: 1 << 20, HistoryBytes: 1 << 30})
	const publishers, each, watchers = 4, 500, 8
	recorders := make([]*recorder, watchers)
	for i := range recorders {
		recorders[i] = &recorder{}
		_, err := b.Join(wire.Start{Topic: "a"}, recorders[i], true)
		require.NoError(t, err)
	}
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for range each {
				publish(t, b, "a")
			}
		})
	}
	wg.Go(func() {
		for range each {
			if j, err := b.Join(wire.Start{Topic: "a"}, &recorder{}, true); err == nil {
				j.Leave()
			}
		}
	})
	wg.Wait()
	b.Close()
	for _, r := range recorders {
		require.Len(t, r.got(), publishers*each)
		for i, offset := range r.got() {
			require.Equal(t, uint64(i+1), offset)
		}
	}
}

func TestHistoryIsBoundedByCount(t *testing.T) {
	b := newBroker(Config{HistoryMessages: 3})
	for range 5 {
		publish(t, b, "a")
	}
	require.Equal(t, "3 4 5", read(t, b, "a@oldest", 9))
	require.Equal(t, "gap(evicted 1-2) 3 4 5", read(t, b, "a@EPOCH:1", 9))
	require.Equal(t, "5", read(t, b, "a@EPOCH:4", 9))
	require.Equal(t, "", read(t, b, "a@EPOCH:5", 9))
	require.Equal(t, "gap(evicted 0-2) 3", read(t, b, "a@EPOCH:0", 2), "the gap counts against the limit")
	require.Equal(t, "", read(t, b, "a", 9), "now is after all messages")
}

func TestHistoryIsBoundedByBytesButKeepsTheNewest(t *testing.T) {
	one := (&wire.Message{Data: []byte("1")}).Size()
	b := newBroker(Config{HistoryBytes: 2 * one})
	for range 4 {
		publish(t, b, "a")
	}
	require.Equal(t, "3 4", read(t, b, "a@oldest", 9))
	big := &wire.Message{Position: wire.Position{Topic: "a"}, Data: make([]byte, 10*one)}
	_, err := b.Publish(big, 0, time.Now())
	require.NoError(t, err)
	require.Equal(t, "gap(evicted 3-4) 5", read(t, b, "a@EPOCH:3", 9))
	require.EqualValues(t, big.Size(), b.memory.Of(memory.History))
}

func TestHistoryIsBoundedByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{HistoryAge: time.Minute})
		publish(t, b, "a")
		time.Sleep(40 * time.Second)
		publish(t, b, "a")
		time.Sleep(20 * time.Second)
		b.Sweep(time.Now())
		require.Equal(t, "gap(expired 0-1) 2", read(t, b, "a@EPOCH:0", 9))
	})
}

func TestAMessageWhoseTTLHasPassedIsAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		publish(t, b, "a")
		for _, ttl := range []time.Duration{time.Second, 2 * time.Second} {
			_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, ttl, time.Now())
			require.NoError(t, err)
		}
		publish(t, b, "a")
		require.Equal(t, "1 2 3 4", read(t, b, "a@oldest", 9))
		time.Sleep(time.Second)
		require.Equal(t, "1 gap(expired 1-2) 3 4", read(t, b, "a@oldest", 9))
		time.Sleep(time.Second)
		require.Equal(t, "1 gap(expired 1-3) 4", read(t, b, "a@oldest", 9), "consecutive losses are one gap")
	})
}

func TestAnUnknownPositionIsARestart(t *testing.T) {
	b := newBroker(Config{HistoryMessages: 2})
	for range 4 {
		publish(t, b, "a")
	}
	require.Equal(t, "gap(restarted 1-2) 3 4", read(t, b, "a@another:1", 9), "another epoch")
	require.Equal(t, "gap(restarted 9-2) 3 4", read(t, b, "a@EPOCH:9", 9), "ahead of the topic")
}

func TestOffsetsOfAForgottenTopicAreNotUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{HistoryAge: time.Minute})
		for range 7 {
			publish(t, b, "long")
		}
		publish(t, b, "short")
		r := &recorder{}
		j, err := b.Join(wire.Start{Topic: "watched"}, r, true)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		b.Sweep(time.Now())
		_, ok := b.Topic("short")
		require.False(t, ok, "it has no messages and no subscriber")
		_, ok = b.Topic("watched")
		require.True(t, ok, "it has a subscriber")
		require.Equal(t, uint64(8), publish(t, b, "short"), "above every forgotten offset")
		require.Equal(t, "8", read(t, b, "short@EPOCH:1", 9), "nothing is missing")
		require.Equal(t, "gap(evicted 0-1) 8", read(t, b, "short@EPOCH:0", 9))
		j.Leave()
	})
}

func TestTopicsAreBounded(t *testing.T) {
	b := newBroker(Config{MaxTopics: 2})
	publish(t, b, "a")
	publish(t, b, "b")
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "c"}}, 0, time.Now())
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
	_, err = b.Join(wire.Start{Topic: "c"}, &recorder{}, true)
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
	require.Equal(t, 2.0, limited(b, "topics"))
	publish(t, b, "a")
}

// limited returns how many calls a limit refused.
func limited(b *Broker, limit string) float64 {
	return testutil.ToFloat64(b.metrics.Limited.WithLabelValues(limit))
}

func TestSubscriptionsAreBounded(t *testing.T) {
	b := newBroker(Config{MaxSubscriptions: 2})
	j, err := b.Join(wire.Start{Topic: "a"}, &recorder{}, true)
	require.NoError(t, err)
	_, err = b.Join(wire.Start{Topic: "b"}, &recorder{}, true)
	require.NoError(t, err)
	_, err = b.Join(wire.Start{Topic: "a"}, &recorder{}, true)
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
	require.Equal(t, 1.0, limited(b, "all_subscriptions"))
	j.Leave()
	_, err = b.Join(wire.Start{Topic: "a"}, &recorder{}, true)
	require.NoError(t, err)
}

// stuck is a Subscriber whose Offer blocks, against the rule.
type stuck struct {
	release chan struct{}
	missed  int // number of calls of Missed
}

func (s *stuck) Missed() { s.missed++ }

func (*stuck) Forgotten() {}

func (s *stuck) Offer([]*frame.Frame, time.Time) { <-s.release }

// A fan-out that hangs does not block publishers. When it lags too far, publishes are
// refused, so that no message is evicted before it is offered. Other topics do not suffer.
func TestALaggingFanOutRefusesPublishesAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{HistoryMessages: 10})
		s, r := &stuck{release: make(chan struct{})}, &recorder{}
		others := make([]Subscriber, fewSubscribers) // so many that the publisher does not fan out itself
		for i := range others {
			others[i] = &recorder{}
		}
		for _, to := range append(others, s, r) {
			_, err := b.Join(wire.Start{Topic: "a"}, to, true)
			require.NoError(t, err)
		}
		publish(t, b, "a")
		synctest.Wait() // the fan-out hangs while it offers the first message
		for range lagMessages - 1 {
			publish(t, b, "a")
		}
		_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "a"}}, 0, time.Now())
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
		publish(t, b, "other")
		time.Sleep(2 * Config{}.WithDefaults().HistoryAge)
		b.Sweep(time.Now()) // messages that were not offered do not expire
		close(s.release)
		synctest.Wait()
		publish(t, b, "a")
		b.Close()
		require.Len(t, r.got(), lagMessages+1)
		for i, offset := range r.got() {
			require.EqualValues(t, i+1, offset)
		}
	})
}

func BenchmarkMakeTopic(b *testing.B) {
	br := newBroker(Config{MaxTopics: 1 << 40, MemoryBudget: 1 << 40})
	for i := 0; b.Loop(); i++ {
		if _, err := br.Join(wire.Start{Topic: "t." + strconv.Itoa(i*7919%1_000_003)}, &recorder{}, true); err != nil {
			b.Fatal(err)
		}
	}
}

func TestTheStateOfATopicHasTheTimeOfItsNewestMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{HistoryAge: time.Minute})
		publish(t, b, "a")
		time.Sleep(time.Second)
		publish(t, b, "a")
		state, _ := b.Topic("a")
		require.Equal(t, time.Now().UnixMilli(), state.Time)
		_, err := b.Join(wire.Start{Topic: "a"}, &recorder{}, true) // so that it is not forgotten
		require.NoError(t, err)
		time.Sleep(time.Minute)
		b.Sweep(time.Now())
		state, _ = b.Topic("a")
		require.Zero(t, state.Time, "it is not held any more")
	})
}

func TestMemoryIsCountedUntilItIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{HistoryAge: time.Minute})
		publish(t, b, "a")
		frames, _ := b.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, frame.Limit{Frames: 1}, time.Now())
		n := len(frames[0].Bytes(frame.NDJSON))
		var g metrics.Gauges
		b.Gauges(&g)
		require.EqualValues(t, n, g.Memory["frames"])
		require.EqualValues(t, frames[0].Size(), g.Memory["history"])
		time.Sleep(time.Minute)
		b.Sweep(time.Now())
		b.Gauges(&g)
		require.Zero(t, g.Memory["frames"])
		require.Zero(t, g.Memory["history"])
	})
}

func BenchmarkPublish(b *testing.B) {
	br := newBroker(Config{})
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		_, _ = br.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, 0, now)
	}
}

// consistent checks the broker's counters against its topics.
func consistent(t testing.TB, b *Broker) {
	t.Helper()
	bytes := 0
	b.each(func(topic *topic) {
		topic.mu.Lock()
		defer topic.mu.Unlock()
		bytes += topic.history.bytes
		require.Equal(t, topic.head, topic.mark)
		require.False(t, topic.fanning || topic.missed)
		require.Zero(t, topic.unsent)
		require.Zero(t, topic.unsentBytes)
		require.Zero(t, topic.expected)
	})
	require.EqualValues(t, bytes, b.memory.Of(memory.History)+b.memory.Of(memory.Local))
}
