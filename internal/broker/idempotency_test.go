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

func TestARetryGetsTheFirstResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		first, err := b.PublishOnce(t.Context(), "", keyed("a", "k", "1"), 0, time.Now())
		require.NoError(t, err)
		time.Sleep(Config{}.WithDefaults().IdempotencyWindow - time.Millisecond)
		b.Sweep(time.Now())
		again, err := b.PublishOnce(t.Context(), "", keyed("a", "k", "1"), 0, time.Now())
		require.NoError(t, err)
		require.Equal(t, first, again, "the time, too")
		require.Equal(t, 1, counted(t, b.metrics, "messages_published_total"))
		require.Equal(t, 1, counted(t, b.metrics, "idempotency_results_total", "repeated"))

		var gauges metrics.Gauges
		b.Gauges(&gauges)
		require.Equal(t, 1, gauges.IdempotencyKeys)

		time.Sleep(time.Millisecond)
		require.Equal(t, uint64(2), publishOnce(t, b, "", keyed("a", "k", "other")), "the window has passed, also without a sweep")
		require.Equal(t, uint64(2), publishOnce(t, b, "", keyed("a", "k", "other")))
		b.Sweep(time.Now())
		require.Equal(t, uint64(2), publishOnce(t, b, "", keyed("a", "k", "other")), "the newer use of the key is kept")
		time.Sleep(Config{}.WithDefaults().IdempotencyWindow)
		b.Sweep(time.Now())
		require.Zero(t, b.keys.count())
		require.Empty(t, b.keys.byScope)
	})
}

// A key belongs to one owner and one topic.
func TestOwnersAndTopicsHaveTheirOwnKeys(t *testing.T) {
	b := newBroker(Config{})
	require.Equal(t, uint64(1), publishOnce(t, b, "ann", keyed("a", "k", "1")))
	require.Equal(t, uint64(2), publishOnce(t, b, "bob", keyed("a", "k", "2")))
	require.Equal(t, uint64(3), publishOnce(t, b, "ann", keyed("a", "l", "3")))
	require.Equal(t, uint64(1), publishOnce(t, b, "ann", keyed("b", "k", "4")))
	require.Equal(t, uint64(4), publishOnce(t, b, "anna", keyed("a", "", "5")))
	require.Equal(t, uint64(5), publishOnce(t, b, "ann", keyed("a", "a", "5")), "the parts are not just concatenated")
	require.Equal(t, uint64(1), publishOnce(t, b, "ann", keyed("a", "k", "1")))
}

// A change of any part makes another message.
func TestTheFingerprintCoversTheWholeMessage(t *testing.T) {
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
func TestTheFingerprintDistinguishesCBORFromJSON(t *testing.T) {
	b := newBroker(Config{})
	require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("a", "k", "1")))
	inCBOR := keyed("a", "k", "1")
	inCBOR.CBOR = true
	require.Zero(t, publishOnce(t, b, "", inCBOR))
}

// A refused message was not published, so its key can be used again.
func TestAFailedPublishCanBeRetried(t *testing.T) {
	b := newBroker(Config{MaxTopics: 1})
	publish(t, b, "a")
	_, err := b.PublishOnce(t.Context(), "", keyed("b", "k", "1"), 0, time.Now())
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
	require.Empty(t, b.keys.byScope)
	b.Reload(Config{MaxTopics: 2}, time.Now())
	require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("b", "k", "another")))
}

// A repeated publish gets its result even if a new one would be refused.
func TestARepeatNeedsNoTopic(t *testing.T) {
	b := newBroker(Config{MaxTopics: 1})
	require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("a", "k", "1")))
	b.Sweep(time.Now().Add(b.settings.Load().HistoryAge)) // forgets the topic
	publish(t, b, "b")
	require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("a", "k", "1")))
}

// A publish that waits for another one with the same key ends with its context.
func TestAWaitForTheSameKeyEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		hold := make(chan struct{})
		_, err := b.Join(wire.Start{Topic: "a"}, &stuck{release: hold}, true) // the publisher itself offers to it
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

// The hook may change the message. The key stands for the message before that.
func TestAKeyStandsForTheUnchangedMessage(t *testing.T) {
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

// A caller that cannot wait asks first.
func TestIsUnderWayFindsTheSameKeyOnly(t *testing.T) {
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

// The log answers late. Meanwhile the window has passed, and the key is used again: the late
// answer ends its own use of the key, not the new one.
func TestALateAnswerEndsNoOtherUseOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &late{}
		b := NewWithLog(Config{}, metrics.New("test"), time.Now(), l.open)
		publish := func() (c *Commit, ended func() error) {
			var end error
			c = b.NewCommit(func(_ int, _ wire.Published, err error) { end = err })
			m := keyed("a", "k", "1")
			_, err := b.Once(UntilDone(t.Context()), "ann", m, 0, time.Now(), func(k Key) (wire.Published, error) {
				return b.PublishBy(b.Route("a").In(c), k, m, 0, time.Now())
			})
			require.ErrorIs(t, err, ErrPending)
			return c, func() error { return end }
		}
		first, ended := publish()
		first.Send() // it is applied, but not answered
		require.False(t, b.IsUnderWay("ann", "a", "k"))
		time.Sleep(Config{}.WithDefaults().IdempotencyWindow)
		second, _ := publish()
		require.True(t, b.IsUnderWay("ann", "a", "k"))
		late := errors.New("late")
		l.done([]Result{{Err: late}})
		require.ErrorIs(t, ended(), late)
		require.True(t, b.IsUnderWay("ann", "a", "k"), "others wait for the second")
		second.Send()
		require.False(t, b.IsUnderWay("ann", "a", "k"))
	})
}

// A late log applies entries, and keeps what it must call when it answers.
type late struct {
	sequence
	done func([]Result)
}

func (l *late) open(b *Broker) Log {
	l.broker = b
	return l
}

func (l *late) Append(e []Entry, done func([]Result)) {
	l.sequence.Append(e, func([]Result) {})
	l.done = done
}
