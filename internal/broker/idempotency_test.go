package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// keyed is a message with an idempotency key.
func keyed(topic, id, data string) *wire.Message {
	return &wire.Message{Position: wire.Position{Topic: topic}, ID: id, Data: []byte(data)}
}

// publishOnce publishes as owner and returns the offset, or 0 for a mismatch.
func publishOnce(t *testing.T, b *Broker, owner string, m *wire.Message) uint64 {
	t.Helper()
	published, err := b.PublishOnce(t.Context(), owner, m, 0, time.Now())
	if errors.Is(err, &wire.Problem{Code: wire.CodeIdempotencyMismatch}) {
		return 0
	}
	require.NoError(t, err)
	return published.Position.Offset
}

func TestAPublisherThatLostTheAnswerIsAnsweredAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		first, err := b.PublishOnce(t.Context(), "", keyed("a", "k", "1"), 0, time.Now())
		require.NoError(t, err)
		time.Sleep(DefaultIdempotencyWindow - time.Millisecond)
		b.Sweep(time.Now())
		again, err := b.PublishOnce(t.Context(), "", keyed("a", "k", "1"), 0, time.Now())
		require.NoError(t, err)
		require.Equal(t, first, again, "also its time")
		require.Equal(t, 1, counted(t, b.metrics, "messages_published_total"))
		require.Equal(t, 1, counted(t, b.metrics, "idempotency_results_total", "repeated"))

		var gauges metrics.Gauges
		b.Gauges(&gauges)
		require.Equal(t, 1, gauges.IdempotencyKeys)

		time.Sleep(time.Millisecond)
		require.Equal(t, uint64(2), publishOnce(t, b, "", keyed("a", "k", "other")), "the window has passed, swept or not")
		require.Equal(t, uint64(2), publishOnce(t, b, "", keyed("a", "k", "other")))
		b.Sweep(time.Now())
		require.Equal(t, uint64(2), publishOnce(t, b, "", keyed("a", "k", "other")), "the older one's end is not the newer one's")
		time.Sleep(DefaultIdempotencyWindow)
		b.Sweep(time.Now())
		require.Zero(t, b.keys.count())
		require.Empty(t, b.keys.byScope)
	})
}

// A key is its owner's, for one topic.
func TestKeysOfOthersAreOtherKeys(t *testing.T) {
	b := newBroker(Config{})
	require.Equal(t, uint64(1), publishOnce(t, b, "ann", keyed("a", "k", "1")))
	require.Equal(t, uint64(2), publishOnce(t, b, "bob", keyed("a", "k", "2")))
	require.Equal(t, uint64(3), publishOnce(t, b, "ann", keyed("a", "l", "3")))
	require.Equal(t, uint64(1), publishOnce(t, b, "ann", keyed("b", "k", "4")))
	require.Equal(t, uint64(4), publishOnce(t, b, "anna", keyed("a", "", "5")))
	require.Equal(t, uint64(5), publishOnce(t, b, "ann", keyed("a", "a", "5")), "where one part ends and the next begins matters")
	require.Equal(t, uint64(1), publishOnce(t, b, "ann", keyed("a", "k", "1")))
}

// Whatever a publisher says of the message makes it another one.
func TestTheFingerprintCoversWhatAPublisherSays(t *testing.T) {
	same := func() (*wire.Message, time.Duration) {
		return &wire.Message{Position: wire.Position{Topic: "a"}, ID: "k", Type: "text/plain", Key: "x", Client: "c", Data: []byte("d")}, time.Second
	}
	for name, change := range map[string]func(m *wire.Message, ttl *time.Duration){
		"type":            func(m *wire.Message, _ *time.Duration) { m.Type = "text/html" },
		"JSON":            func(m *wire.Message, _ *time.Duration) { m.Type = "" },
		"JSON in CBOR":    func(m *wire.Message, _ *time.Duration) { m.Type, m.CBOR = "", true },
		"key":             func(m *wire.Message, _ *time.Duration) { m.Key = "y" },
		"no key":          func(m *wire.Message, _ *time.Duration) { m.Key = "" },
		"client":          func(m *wire.Message, _ *time.Duration) { m.Client = "d" },
		"no client":       func(m *wire.Message, _ *time.Duration) { m.Client = "" },
		"key for client":  func(m *wire.Message, _ *time.Duration) { m.Key, m.Client = "c", "x" },
		"body":            func(m *wire.Message, _ *time.Duration) { m.Data = []byte("e") },
		"no body":         func(m *wire.Message, _ *time.Duration) { m.Data = nil },
		"client and body": func(m *wire.Message, _ *time.Duration) { m.Client, m.Data = "", []byte("cd") },
		"ttl":             func(_ *wire.Message, ttl *time.Duration) { *ttl = 2 * time.Second },
		"no ttl":          func(_ *wire.Message, ttl *time.Duration) { *ttl = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(Config{})
			m, ttl := same()
			_, err := b.PublishOnce(t.Context(), "", m, ttl, time.Now())
			require.NoError(t, err)
			m, ttl = same()
			change(m, &ttl)
			_, err = b.PublishOnce(t.Context(), "", m, ttl, time.Now())
			require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeIdempotencyMismatch})
			require.Equal(t, 1, counted(t, b.metrics, "idempotency_results_total", "mismatched"))
			m, ttl = same()
			again, err := b.PublishOnce(t.Context(), "", m, ttl, time.Now())
			require.NoError(t, err)
			require.Equal(t, uint64(1), again.Position.Offset)
		})
	}
}

// The same byte is 1 in JSON and -18 in CBOR.
func TestTheFingerprintTellsCBORFromJSON(t *testing.T) {
	b := newBroker(Config{})
	require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("a", "k", "1")))
	inCBOR := keyed("a", "k", "1")
	inCBOR.CBOR = true
	require.Zero(t, publishOnce(t, b, "", inCBOR))
}

// What was refused was not published: the same key may try again.
func TestAPublishThatFailedMayBeTriedAgain(t *testing.T) {
	b := newBroker(Config{MaxTopics: 1})
	publish(t, b, "a")
	_, err := b.PublishOnce(t.Context(), "", keyed("b", "k", "1"), 0, time.Now())
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
	require.Empty(t, b.keys.byScope)
	b.Reload(Config{MaxTopics: 2}, time.Now())
	require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("b", "k", "another")))
}

// A repeated publish is told its result even where a new one would be refused.
func TestARepeatNeedsNoRoom(t *testing.T) {
	b := newBroker(Config{MaxTopics: 1})
	require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("a", "k", "1")))
	b.Sweep(time.Now().Add(b.settings.Load().HistoryAge)) // forgets the topic
	publish(t, b, "b")
	require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("a", "k", "1")))
}

// One that waits for another's end gives up when its client does.
func TestWhoWaitsForAPublishGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		hold := make(chan struct{})
		_, err := b.Join(wire.Start{Topic: "a"}, &stuck{release: hold}, true) // who publishes offers to it
		require.NoError(t, err)
		go publishOnce(t, b, "", keyed("a", "k", "1"))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		_, err = b.PublishOnce(ctx, "", keyed("a", "k", "1"), 0, time.Now())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begun))
		close(hold)
		require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("a", "k", "1")))
	})
}

// What is published may be another message than the one that the key is for.
func TestAKeyStandsForTheMessageAsItWasGiven(t *testing.T) {
	b := newBroker(Config{})
	calls := 0
	once := func(data string) (wire.Published, error) {
		m := keyed("a", "k", data)
		return b.Once(UntilDone(t.Context()), "", m, time.Second, time.Now(), func(k Key) (wire.Published, error) {
			calls++
			m.Data, m.Key = []byte("another"), "x"
			return b.PublishBy(Route{}, k, m, time.Minute, time.Now())
		})
	}
	first, err := once("1")
	require.NoError(t, err)
	again, err := once("1")
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Equal(t, 1, calls)
	_, err = once("another")
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeIdempotencyMismatch})
}

// Who cannot wait asks before.
func TestWhatIsUnderWayIsKnown(t *testing.T) {
	b := newBroker(Config{})
	require.False(t, b.IsUnderWay("me", "a", "k"))
	_, err := b.Once(UntilDone(t.Context()), "me", keyed("a", "k", "1"), 0, time.Now(), func(k Key) (wire.Published, error) {
		require.True(t, b.IsUnderWay("me", "a", "k"))
		require.False(t, b.IsUnderWay("you", "a", "k"))
		require.False(t, b.IsUnderWay("me", "b", "k"))
		require.False(t, b.IsUnderWay("me", "a", "l"))
		return wire.Published{}, nil
	})
	require.NoError(t, err)
	require.False(t, b.IsUnderWay("me", "a", "k"), "it is over")
}
