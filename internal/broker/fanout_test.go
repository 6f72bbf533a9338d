package broker

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A writer is a Subscriber that takes about as long as a write to a connection.
type writer struct{ offered *atomic.Int64 }

func (*writer) Missed() {}

func (*writer) Forgotten() {}

func (w *writer) Offer([]*frame.Frame, time.Time) {
	for begun := time.Now(); time.Since(begun) < 5*time.Microsecond; {
	}
	w.offered.Add(1)
}

// crowd joins n writers to a topic, and returns the number of their offers.
func crowd(t testing.TB, b *Broker, topic string, n int) *atomic.Int64 {
	t.Helper()
	var offered atomic.Int64
	for range n {
		_, err := b.Join(wire.Start{Topic: topic}, &writer{&offered}, true)
		require.NoError(t, err)
	}
	return &offered
}

// A heldUp is a writer that blocks until a channel is closed.
type heldUp struct {
	writer
	until <-chan struct{}
}

func (w *heldUp) Offer(frames []*frame.Frame, now time.Time) {
	<-w.until
	w.writer.Offer(frames, now)
}

// Ten topics publish while the fan-out of a huge one is running. Their subscribers get the
// messages before the huge fan-out ends.
func TestSmallTopicsDoNotWaitForAHugeOne(t *testing.T) {
	b := newBroker(Config{})
	const many, few = 4 * part, 2 * fewSubscribers
	var huge atomic.Int64
	had := make(chan struct{}) // closed when the other topics have fanned out
	for range many {
		_, err := b.Join(wire.Start{Topic: "huge"}, &heldUp{writer{&huge}, had}, true)
		require.NoError(t, err)
	}
	var others []*atomic.Int64
	for i := range 10 {
		others = append(others, crowd(t, b, fmt.Sprint("busy", i), few))
	}
	publish(t, b, "huge")
	for i := range others {
		publish(t, b, fmt.Sprint("busy", i))
	}
	for _, offered := range others {
		require.Eventually(t, func() bool { return offered.Load() == few }, 30*time.Second, time.Millisecond)
	}
	require.Zero(t, huge.Load(), "the huge fan-out is still running")
	close(had)
	b.Close()
	require.EqualValues(t, many, huge.Load())
}

// Publishers of a small topic offer its messages themselves, while others publish. Every
// subscriber gets all messages once, in order.
func TestConcurrentPublishersThatFanOutLoseNothing(t *testing.T) {
	for _, topic := range []string{"a", ephemeral} {
		t.Run(topic, func(t *testing.T) { publishersLoseNothing(t, topic) })
	}
}

func publishersLoseNothing(t *testing.T, topic string) {
	b := newBroker(Config{HistoryMessages: 100_000, Rules: typing.Rules})
	readers := [2]recorder{}
	for i := range readers {
		_, err := b.Join(wire.Start{Topic: topic}, &readers[i], true)
		require.NoError(t, err)
	}
	const publishers, each = 8, 500
	var publishing sync.WaitGroup
	for range publishers {
		publishing.Go(func() {
			for range each {
				for {
					_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
					if err == nil {
						break // otherwise the fan-out lags too far
					}
				}
			}
		})
	}
	publishing.Wait()
	b.Close()
	for i := range readers {
		got := readers[i].got()
		require.Len(t, got, publishers*each)
		for n, offset := range got {
			require.EqualValues(t, n+1, offset)
		}
	}
}

// The time of a publish does not grow with the number of subscribers. The pause between
// publishes is the same for all numbers: after a long pause, caches are cold and threads
// sleep, and a publish takes ten times as long.
func BenchmarkPublishTo(b *testing.B) {
	const rest = 100 * time.Millisecond // longer than 10,000 offers take
	for _, subscribers := range []int{10, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d subscribers", subscribers), func(b *testing.B) {
			br := newBroker(Config{})
			offered := crowd(b, br, "a", subscribers)
			var waited time.Duration
			published := int64(0)
			for b.Loop() {
				begun := time.Now()
				_, err := br.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, 0, begun)
				waited += time.Since(begun)
				if err != nil {
					b.Fatal(err)
				}
				published++
				for offered.Load() < published*int64(subscribers) { // so that the next publish is not refused
					time.Sleep(50 * time.Microsecond)
				}
				time.Sleep(rest - time.Since(begun))
			}
			b.ReportMetric(float64(waited.Nanoseconds())/float64(published), "ns/publish")
		})
	}
}

// BenchmarkFanOut measures the fan-out without the work of subscribers.
func BenchmarkFanOut(b *testing.B) {
	br := newBroker(Config{})
	const subscribers = 10_000
	var ignored recorder
	for range subscribers {
		if _, err := br.Join(wire.Start{Topic: "a"}, discard{&ignored}, true); err != nil {
			b.Fatal(err)
		}
	}
	t := br.find("a")
	frames := []*frame.Frame{frame.New(&wire.Message{Position: wire.Position{Topic: "a", Offset: 1}}, time.Now(), 0, nil)}
	b.ReportAllocs()
	for b.Loop() {
		offerAll(t.subs, frames)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/subscribers, "ns/offer")
}

// discard is a Subscriber that does nothing.
type discard struct{ *recorder }

func (discard) Missed() {}

func (discard) Forgotten() {}

func (discard) Offer([]*frame.Frame, time.Time) {}

// A prompter publishes another message during its first offer.
type prompter struct {
	recorder
	publish func()
	once    sync.Once
}

func (p *prompter) Offer(frames []*frame.Frame, now time.Time) {
	p.recorder.Offer(frames, now)
	p.once.Do(p.publish)
}

// A message that is published while a publisher fans out is offered by a goroutine of the
// broker.
func TestMessagesDuringAFanOutOfAPublisherAreOffered(t *testing.T) {
	b := newBroker(Config{})
	p := &prompter{publish: func() { publish(t, b, "a") }}
	_, err := b.Join(wire.Start{Topic: "a"}, p, true)
	require.NoError(t, err)
	publish(t, b, "a")
	b.Close()
	require.Equal(t, []uint64{1, 2}, p.got())
}
