package broker

import (
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

// once publishes as an owner, after other publishes with the same key.
func (b *Broker) once(owner string, m *wire.Message, ttl time.Duration) (wire.Published, error) {
	return b.keys.do(keyOf(owner, m, ttl), time.Now(), func(c Claim) Result {
		r, over := b.Send(b.Route(m.Position.Topic), c, m, ttl, time.Now(), nil)
		if !over {
			panic("the log waits")
		}
		return r
	})
}

// publishOnce publishes as owner and returns the offset, or 0 for a mismatch.
func publishOnce(t *testing.T, b *Broker, owner string, m *wire.Message) uint64 {
	t.Helper()
	published, err := b.once(owner, m, 0)
	if errors.Is(err, &wire.Problem{Code: wire.CodeIdempotencyMismatch}) {
		return 0
	}
	require.NoError(t, err)
	return published.Position.Offset
}

func TestARetryGetsTheFirstResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		first, err := b.once("", keyed("a", "k", "1"), 0)
		require.NoError(t, err)
		time.Sleep(Config{}.WithDefaults().IdempotencyWindow - time.Millisecond)
		b.Sweep(time.Now())
		again, err := b.once("", keyed("a", "k", "1"), 0)
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
			_, err := b.once("", m, ttl)
			require.NoError(t, err)
			m, ttl = same()
			change(m, &ttl)
			_, err = b.once("", m, ttl)
			require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeIdempotencyMismatch})
			require.Equal(t, 1, counted(t, b.metrics, "idempotency_results_total", "mismatched"))
			m, ttl = same()
			again, err := b.once("", m, ttl)
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
	_, err := b.once("", keyed("b", "k", "1"), 0)
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

// The hook may change the message. The key stands for the message before that.
func TestAKeyStandsForTheUnchangedMessage(t *testing.T) {
	b := newBroker(Config{})
	calls := 0
	once := func(data string) (wire.Published, error) {
		m := keyed("a", "k", data)
		return b.keys.do(keyOf("", m, time.Second), time.Now(), func(c Claim) Result {
			calls++
			m.Data, m.Key = []byte("another"), "x"
			r, _ := b.Send(Route{}, c, m, time.Minute, time.Now(), nil)
			return r
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

// A claim is for one owner, one topic and one key, until it is released.
func TestAClaimIsForItsKeyOnly(t *testing.T) {
	b := newBroker(Config{})
	claim := func(owner, topic, key string) (Claim, bool) {
		c, _, underWay := b.Claim(owner, keyed(topic, key, "1"), 0, time.Now())
		return c, underWay == nil
	}
	mine, claimed := claim("me", "a", "k")
	require.True(t, claimed)
	_, claimed = claim("me", "a", "k")
	require.False(t, claimed)
	for _, other := range [][3]string{{"you", "a", "k"}, {"me", "b", "k"}, {"me", "a", "l"}} {
		c, claimed := claim(other[0], other[1], other[2])
		require.True(t, claimed)
		b.Release(c)
	}
	b.Release(mine)
	again, claimed := claim("me", "a", "k")
	require.True(t, claimed, "it is over")
	b.Release(mine)
	_, claimed = claim("me", "a", "k")
	require.False(t, claimed, "a claim ends its own use of the key")
	b.Release(again)
	b.Release(Claim{})
	require.Empty(t, b.keys.byScope)
}

// The log answers late. Meanwhile the window has passed, and the key is used again: the late
// answer ends its own use of the key, not the new one.
func TestALateAnswerEndsNoOtherUseOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &late{}
		b := NewWithLog(Config{}, metrics.New("test"), time.Now(), l.open)
		claim := func() (Claim, bool) {
			c, _, underWay := b.Claim("ann", keyed("a", "k", "1"), 0, time.Now())
			return c, underWay == nil
		}
		send := func(c Claim) (ended func() error) {
			var end error
			_, over := b.Send(b.Route("a"), c, keyed("a", "k", "1"), 0, time.Now(), func(r Result) { end = r.Err })
			require.False(t, over)
			return func() error { return end }
		}
		isUnderWay := func() bool {
			_, _, underWay := b.Claim("ann", keyed("a", "k", "1"), 0, time.Now())
			return underWay != nil
		}
		first, claimed := claim()
		require.True(t, claimed)
		ended := send(first) // it is applied, but not answered
		require.False(t, isUnderWay())
		time.Sleep(Config{}.WithDefaults().IdempotencyWindow)
		second, claimed := claim()
		require.True(t, claimed)
		require.True(t, isUnderWay())
		late := errors.New("late")
		l.done([]Result{{Err: late}})
		require.ErrorIs(t, ended(), late)
		require.True(t, isUnderWay(), "others wait for the second")
		send(second)
		require.False(t, isUnderWay())
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
