package broker

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// saved closes the broker and returns its state.
func saved(t testing.TB, b *Broker) []byte {
	t.Helper()
	b.Close()
	var out bytes.Buffer
	require.NoError(t, b.Save(&out, time.Now()))
	return out.Bytes()
}

func restore(cfg Config, state []byte) (*Broker, error) {
	return Restore(cfg, metrics.New("test"), bytes.NewReader(state), time.Now())
}

// successor is the broker that goes on where b ends.
func successor(t testing.TB, b *Broker, cfg Config) *Broker {
	t.Helper()
	next, err := restore(cfg, saved(t, b))
	require.NoError(t, err)
	consistent(t, next)
	return next
}

// consistent checks the broker's accounts against what it holds.
func consistent(t testing.TB, b *Broker) {
	t.Helper()
	var topics, bytes, subscriptions int
	for i := range b.shards {
		for _, topic := range b.shards[i].all() {
			state := topic.state()
			topics, bytes, subscriptions = topics+1, bytes+state.Bytes, subscriptions+state.Subscriptions
			require.LessOrEqual(t, state.Oldest.Offset, state.Position.Offset)
		}
	}
	var g metrics.Gauges
	b.Gauges(&g)
	require.Equal(t, topics, g.Topics)
	require.EqualValues(t, bytes, g.HistoryBytes)
	require.Equal(t, subscriptions, g.Subscriptions)
}

// contents is all that a broker holds, as text: messages with their ages and lives.
func contents(b *Broker, now time.Time) map[string]string {
	all := map[string]string{"": fmt.Sprint(b.epoch, " ", b.floor.Load(), " ", b.results.held())}
	for i := range b.shards {
		for _, t := range b.shards[i].all() {
			topic, frames := t.saved()
			text := fmt.Sprintf("%+v\n", topic)
			for _, f := range frames {
				text += fmt.Sprintf("%+v %v %v\n", *f.Message(), now.Sub(f.Accepted()), f.TTL())
			}
			all[topic.Name] = text
		}
	}
	return all
}

func TestASuccessorGoesOnWhereItsPredecessorEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		publish(t, b, "a")
		publish(t, b, "a")
		time.Sleep(time.Second)
		next := successor(t, b, Config{})
		require.Equal(t, b.Epoch(), next.Epoch())
		require.Equal(t, "2", read(t, next, "a@EPOCH:1", 10), "nothing is lost or comes twice")
		require.Equal(t, "", read(t, next, "a@EPOCH:2", 10))
		require.Equal(t, uint64(3), publish(t, next, "a"))
	})
}

// Who waits on a quiet topic, whose messages are too old by now, hears of no loss:
// neither do others' higher numbers count for it, nor is it forgotten meanwhile.
func TestASubscriberOfAQuietTopicLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		for range 9 {
			publish(t, b, "forgotten")
		}
		publish(t, b, "quiet")
		_, err := b.Join(wire.Start{Topic: "quiet"}, &recorder{}, true)
		require.NoError(t, err)
		time.Sleep(2 * DefaultHistoryAge)
		b.Sweep(time.Now())
		require.EqualValues(t, 9, b.floor.Load())

		next := successor(t, b, Config{})
		next.Sweep(time.Now())
		require.Equal(t, "", read(t, next, "quiet@EPOCH:1", 10))
		require.Equal(t, uint64(10), publish(t, next, "forgotten"), "its numbers do not come again")
		time.Sleep(awayTime)
		next.Sweep(time.Now())
		_, ok := next.Topic("quiet")
		require.False(t, ok, "nobody came back")
	})
}

// Everything that a message has survives: a field that is added to wire.Message
// has to be added to savedMessage, too.
func TestEveryFieldOfAMessageSurvives(t *testing.T) {
	b := newBroker(Config{})
	m := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("\x00\xff\r\n")}
	fields := reflect.ValueOf(m).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.String {
			f.SetString(fmt.Sprintf("field.%d", i))
		}
	}
	_, err := b.Publish(m, time.Second, time.Now())
	require.NoError(t, err)
	next := successor(t, b, Config{})
	frames, ok := next.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, Limit{Frames: 1, Bytes: 1}, time.Now())
	require.True(t, ok)
	require.Equal(t, m, frames[0].Message())
	require.Equal(t, time.Second, frames[0].TTL())
}

// JSON that came in CBOR is that again, to the byte.
func TestCBORSurvives(t *testing.T) {
	b := newBroker(Config{})
	m := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte{0x9f, 0x18, 1, 0xff}, CBOR: true}
	_, err := b.Publish(m, 0, time.Now())
	require.NoError(t, err)
	state := saved(t, b)
	require.NotContains(t, string(state), `"data"`, "a daemon that knows no CBOR would take it for JSON")
	next, err := restore(Config{}, state)
	require.NoError(t, err)
	frames, ok := next.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, Limit{Frames: 1, Bytes: 1}, time.Now())
	require.True(t, ok)
	require.Equal(t, m, frames[0].Message())
}

// An older daemon took members twice: its state is none the worse.
func TestMembersTwiceSurvive(t *testing.T) {
	b := newBroker(Config{})
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte(`{"a":1,"a":2}`)}, 0, time.Now())
	require.NoError(t, err)
	require.Equal(t, "1", read(t, successor(t, b, Config{}), "a@oldest", 1))
}

// Whatever was published, to whatever topics, with whatever happening: the
// successor holds the same, and so does its own.
func TestStatesComeBackAsTheyWere(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			cfg := Config{HistoryMessages: 1 + random.IntN(50)}
			b := newBroker(cfg)
			for range 300 {
				anything(t, b, random)
			}
			b.Sweep(time.Now())
			next := successor(t, b, cfg)
			require.Equal(t, contents(b, time.Now()), contents(next, time.Now()), "seed %d", seed)
			require.Equal(t, contents(b, time.Now()), contents(successor(t, next, cfg), time.Now()), "seed %d", seed)
		})
	}
}

// anything does one thing that happens to brokers.
func anything(t *testing.T, b *Broker, random *rand.Rand) {
	t.Helper()
	switch random.IntN(8) {
	case 0:
		time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
	case 1:
		b.Sweep(time.Now())
	default:
		m := &wire.Message{Position: wire.Position{Topic: fmt.Sprint("t.", random.IntN(10))}, Data: []byte("1")}
		switch random.IntN(4) {
		case 0:
			m.CBOR, m.Data = true, []byte{0x19, 0, byte(random.Uint32())}
		case 1, 2:
			m.Type, m.Key = "application/octet-stream", "schlüssel\n<&>\u2028"
			m.Data = make([]byte, random.IntN(300))
			for i := range m.Data {
				m.Data[i] = byte(random.Uint32())
			}
		}
		ttl := time.Duration(random.IntN(3)) * time.Second
		if random.IntN(4) > 0 {
			_, err := b.Publish(m, ttl, time.Now())
			require.NoError(t, err)
			return
		}
		m.ID = fmt.Sprint(random.IntN(20))
		_, err := b.PublishOnce(t.Context(), "", m, ttl, time.Now())
		require.True(t, err == nil || errors.Is(err, &wire.Problem{Code: wire.CodeIdempotencyMismatch}), "%v", err)
	}
}

func TestALargeMessageSurvives(t *testing.T) {
	b := newBroker(Config{HistoryBytes: 64 << 20})
	m := &wire.Message{Position: wire.Position{Topic: "a"}, Type: "x/y", Data: bytes.Repeat([]byte{0xff}, 8<<20)}
	_, err := b.Publish(m, 0, time.Now())
	require.NoError(t, err)
	next := successor(t, b, Config{HistoryBytes: 64 << 20})
	require.Equal(t, "1", read(t, next, "a@oldest", 1))
}

type brokenWriter struct{ after int }

var errBroken = errors.New("no space left")

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.after -= len(p); w.after < 0 {
		return 0, errBroken
	}
	return len(p), nil
}

func TestASaveThatFailsSaysSo(t *testing.T) {
	b := newBroker(Config{HistoryMessages: 2000})
	for range 2000 {
		publish(t, b, "a")
	}
	for _, after := range []int{0, savedBuffer} {
		require.ErrorIs(t, b.Save(&brokenWriter{after}, time.Now()), errBroken)
	}
	b.Close()
}
