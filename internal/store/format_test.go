package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func newBroker(cfg broker.Config) *broker.Broker {
	return broker.New(cfg, metrics.New("test"), time.Now())
}

// publish publishes a one-letter message and returns its offset.
func publish(t *testing.T, b *broker.Broker, topic string) uint64 {
	t.Helper()
	p, err := b.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
	require.NoError(t, err)
	return p.Position.Offset
}

// keyed is a message on topic a with an idempotency key.
func keyed(id, data string) *wire.Message {
	return &wire.Message{Position: wire.Position{Topic: "a"}, ID: id, Data: []byte(data)}
}

// publishOnce publishes and returns the offset, or 0 for a mismatch.
func publishOnce(t *testing.T, b *broker.Broker, m *wire.Message) uint64 {
	t.Helper()
	published, err := publishClaimed(b, m, 0)
	if errors.Is(err, &wire.Problem{Code: wire.CodeIdempotencyMismatch}) {
		return 0
	}
	require.NoError(t, err)
	return published.Position.Offset
}

// frames returns what a start such as a@EPOCH:1 reads.
func frames(t *testing.T, b *broker.Broker, start string, limit int) []*frame.Frame {
	t.Helper()
	s, err := wire.ParseStart(strings.ReplaceAll(start, "EPOCH", b.Epoch("a")))
	require.NoError(t, err)
	frames, from := b.ReadTopic(s, broker.Limit{Frames: limit, Bytes: 1 << 20}, time.Now())
	require.NotZero(t, from, "topic %q exists", s.Topic)
	return frames
}

// readTopic returns what frames returns, as "gap(evicted 2-4) 5".
func readTopic(t *testing.T, b *broker.Broker, start string, limit int) string {
	t.Helper()
	var words []string
	for _, f := range frames(t, b, start, limit) {
		if g := f.Gap(); g != nil {
			words = append(words, fmt.Sprintf("gap(%s %d-%d)", g.Reason, g.After.Offset, g.Position.Offset))
		} else {
			words = append(words, fmt.Sprint(f.Position().Offset))
		}
	}
	return strings.Join(words, " ")
}

// floorOf is the highest offset of a topic that was forgotten.
func floorOf(t *testing.T, b *broker.Broker) (floor uint64) {
	t.Helper()
	require.NoError(t, b.Export(func(e broker.Entry) error {
		if e.Op == broker.OpEpoch {
			floor = e.Message.Position.Offset
		}
		return nil
	}))
	return floor
}

func gaugesOf(b *broker.Broker) (g metrics.Gauges) {
	b.Gauges(&g)
	return g
}

func used(b *broker.Broker) int64 {
	g := gaugesOf(b)
	return g.Memory["history"] + g.Memory["frames"] + g.Memory["queues"] + g.Memory["topics"]
}

// saved closes the broker and returns its state.
func saved(t testing.TB, b *broker.Broker) []byte {
	t.Helper()
	b.Close()
	var out bytes.Buffer
	require.NoError(t, write(&out, b))
	return out.Bytes()
}

func restore(cfg broker.Config, state []byte) (*broker.Broker, error) {
	return read(bytes.NewReader(state), func() *broker.Broker { return newBroker(cfg) }, time.Now())
}

// successor returns a broker that continues from b.
func successor(t testing.TB, b *broker.Broker, cfg broker.Config) *broker.Broker {
	t.Helper()
	next, err := restore(cfg, saved(t, b))
	require.NoError(t, err)
	consistent(t, next)
	return next
}

// consistent checks the broker's accounts against what it holds.
func consistent(t testing.TB, b *broker.Broker) {
	t.Helper()
	bytes, subscriptions := 0, 0
	list := b.Topics(broker.NewListing([]string{">", "_>"}, func(string) bool { return true }), "", 1_000_000).Topics
	for _, state := range list {
		bytes, subscriptions = bytes+state.Bytes, subscriptions+state.Subscriptions
		require.LessOrEqual(t, state.Oldest.Offset, state.Position.Offset)
	}
	g := gaugesOf(b)
	require.Equal(t, len(list), g.Topics)
	require.EqualValues(t, bytes, g.Memory["history"])
	require.Equal(t, subscriptions, g.Subscriptions)
}

// contents is all that a broker holds, as text: messages with their ages and lives.
func contents(t testing.TB, b *broker.Broker, now time.Time) map[string]string {
	t.Helper()
	all := make(map[string]string)
	require.NoError(t, b.Export(func(e broker.Entry) error {
		text := fmt.Sprintf("%+v %v %v", *e.Message, e.TTL, e.Key)
		if e.State != nil {
			text += fmt.Sprintf(" %+v", *e.State)
		}
		if e.Op == broker.OpPublish {
			text += fmt.Sprint(" ", min(e.Accepted.UnixMilli(), now.UnixMilli()))
		}
		all[e.Message.Position.Topic] += text + "\n"
		return nil
	}))
	return all
}

func TestASuccessorContinuesWhereItsPredecessorEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		publish(t, b, "a")
		publish(t, b, "a")
		time.Sleep(time.Second)
		next := successor(t, b, broker.Config{})
		require.Equal(t, b.Epoch("a"), next.Epoch("a"))
		require.Equal(t, "2", readTopic(t, next, "a@EPOCH:1", 10), "no message is lost or repeated")
		require.Equal(t, "", readTopic(t, next, "a@EPOCH:2", 10))
		require.Equal(t, uint64(3), publish(t, next, "a"))
	})
}

// A subscriber of a topic whose messages have expired gets no gap after a restart. Higher
// offsets of other topics do not matter, and the topic is not forgotten meanwhile.
func TestASubscriberOfAQuietTopicLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		for range 9 {
			publish(t, b, "forgotten")
		}
		publish(t, b, "quiet")
		_, err := b.Join(wire.Start{Topic: "quiet"}, silent{}, true)
		require.NoError(t, err)
		time.Sleep(2 * broker.Config{}.WithDefaults().HistoryAge)
		b.Sweep(time.Now())
		require.EqualValues(t, 9, floorOf(t, b))

		next := successor(t, b, broker.Config{})
		next.Sweep(time.Now())
		require.Equal(t, "", readTopic(t, next, "quiet@EPOCH:1", 10))
		require.Equal(t, uint64(10), publish(t, next, "forgotten"), "its offsets are not used again")
		time.Sleep(time.Minute)
		next.Sweep(time.Now())
		_, ok := next.Topic("quiet")
		require.False(t, ok, "no subscriber has reconnected")
	})
}

// The state has every field of a message: if you add one to wire.Message, add it to
// savedMessage.
func TestEveryFieldOfAMessageSurvives(t *testing.T) {
	b := newBroker(broker.Config{})
	m := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("\x00\xff\r\n")}
	fields := reflect.ValueOf(m).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.String {
			f.SetString(fmt.Sprintf("field.%d", i))
		}
	}
	m.Claims = []byte(`{"name":"<Alice> \u00e9"}`)
	_, err := b.Publish(m, time.Second, time.Now())
	require.NoError(t, err)
	next := successor(t, b, broker.Config{})
	frames, from := next.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, broker.Limit{Frames: 1, Bytes: 1}, time.Now())
	require.NotZero(t, from)
	require.Equal(t, m, frames[0].Message())
	require.Equal(t, time.Second, frames[0].TTL())
}

// A message without an identity is written as before, so that an older daemon reads it. An
// older daemon rejects a file with an identity, rather than forget who published.
func TestAMessageWithAnIdentityIsAnotherKindOfLine(t *testing.T) {
	b := newBroker(broker.Config{})
	publish(t, b, "a")
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1"), By: "alice"}, 0, time.Now())
	require.NoError(t, err)
	state := string(saved(t, b))
	require.Regexp(t, `(?m)^\{"message":\{"offset":1,"time":\d+,"data":"MQ=="\}\}$`, state)
	require.Regexp(t, `(?m)^\{"message_by":\{"offset":2,"time":\d+,"data":"MQ==","by":"alice"\}\}$`, state)
}

// JSON values that came in CBOR come back as the same bytes.
func TestCBORSurvives(t *testing.T) {
	b := newBroker(broker.Config{})
	m := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte{0x9f, 0x18, 1, 0xff}, CBOR: true}
	_, err := b.Publish(m, 0, time.Now())
	require.NoError(t, err)
	state := saved(t, b)
	require.NotContains(t, string(state), `"data"`, "an older daemon would read it as JSON")
	next, err := restore(broker.Config{}, state)
	require.NoError(t, err)
	frames, from := next.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, broker.Limit{Frames: 1, Bytes: 1}, time.Now())
	require.NotZero(t, from)
	require.Equal(t, m, frames[0].Message())
}

// An older daemon accepted duplicate members, so its state may have them.
func TestDuplicateMembersSurvive(t *testing.T) {
	b := newBroker(broker.Config{})
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte(`{"a":1,"a":2}`)}, 0, time.Now())
	require.NoError(t, err)
	require.Equal(t, "1", readTopic(t, successor(t, b, broker.Config{}), "a@oldest", 1))
}

// After random publishes and sweeps, the successor holds the same, and so does the
// successor of that.
func TestRandomStatesSurvive(t *testing.T) {
	for seed := range uint64(30 / exhaustive.Step(5)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			cfg := broker.Config{HistoryMessages: 1 + random.IntN(50)}
			b := newBroker(cfg)
			for range 300 {
				anything(t, b, random)
			}
			b.Sweep(time.Now())
			next := successor(t, b, cfg)
			require.Equal(t, contents(t, b, time.Now()), contents(t, next, time.Now()), "seed %d", seed)
			require.Equal(t, contents(t, b, time.Now()), contents(t, successor(t, next, cfg), time.Now()), "seed %d", seed)
		})
	}
}

// anything does one random thing to a broker.
func anything(t *testing.T, b *broker.Broker, random *rand.Rand) {
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
		_, err := publishClaimed(b, m, ttl)
		require.True(t, err == nil || errors.Is(err, &wire.Problem{Code: wire.CodeIdempotencyMismatch}), "%v", err)
	}
}

func TestALargeMessageSurvives(t *testing.T) {
	b := newBroker(broker.Config{HistoryBytes: 64 << 20})
	m := &wire.Message{Position: wire.Position{Topic: "a"}, Type: "x/y", Data: bytes.Repeat([]byte{0xff}, 8<<20)}
	_, err := b.Publish(m, 0, time.Now())
	require.NoError(t, err)
	next := successor(t, b, broker.Config{HistoryBytes: 64 << 20})
	require.Equal(t, "1", readTopic(t, next, "a@oldest", 1))
}

// silent is a subscriber that ignores what it is offered.
type silent struct{}

func (silent) Missed() {}

func (silent) Forgotten() {}

func (silent) Offer([]*frame.Frame, time.Time) {}

type brokenWriter struct{ after int }

var errBroken = errors.New("no space left")

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.after -= len(p); w.after < 0 {
		return 0, errBroken
	}
	return len(p), nil
}

func TestAFailedSaveReturnsTheError(t *testing.T) {
	b := newBroker(broker.Config{HistoryMessages: 2000})
	for range 2000 {
		publish(t, b, "a")
	}
	for _, after := range []int{0, bufferBytes} {
		require.ErrorIs(t, write(&brokenWriter{after}, b), errBroken)
	}
	b.Close()
}

func TestMessagesAgeBetweenDaemons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{HistoryAge: time.Minute})
		publish(t, b, "a")
		time.Sleep(30 * time.Second)
		short := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}
		_, err := b.Publish(short, 20*time.Second, time.Now())
		require.NoError(t, err)
		publish(t, b, "a")
		state := saved(t, b)

		time.Sleep(19 * time.Second)
		next, err := restore(broker.Config{HistoryAge: time.Minute}, state)
		require.NoError(t, err)
		require.Equal(t, "1 2 3", readTopic(t, next, "a@oldest", 10))
		time.Sleep(time.Second)
		require.Equal(t, "1 gap(expired 1-2) 3", readTopic(t, next, "a@oldest", 10))

		time.Sleep(10 * time.Second)
		next, err = restore(broker.Config{HistoryAge: time.Minute}, state)
		require.NoError(t, err)
		require.Equal(t, "gap(expired 0-2) 3", readTopic(t, next, "a@EPOCH:0", 10))
		consistent(t, next)
	})
}

// A publisher whose answer was lost in the restart retries at the successor.
func TestIdempotencyKeysSurvive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		require.Equal(t, uint64(1), publishOnce(t, b, keyed("old", "1")))
		time.Sleep(broker.Config{}.WithDefaults().IdempotencyWindow / 2)
		first, err := publishClaimed(b, keyed("k", "2"), 0)
		require.NoError(t, err)
		time.Sleep(broker.Config{}.WithDefaults().IdempotencyWindow / 2)
		next := successor(t, b, broker.Config{})
		require.Equal(t, 1, gaugesOf(next).IdempotencyKeys, "the window of the other has passed")
		again, err := publishClaimed(next, keyed("k", "2"), 0)
		require.NoError(t, err)
		require.Equal(t, first, again)
		require.Zero(t, publishOnce(t, next, keyed("k", "another")))
		require.Equal(t, uint64(3), publishOnce(t, next, keyed("old", "1")))
		require.Equal(t, 1, gaugesOf(successor(t, b, broker.Config{IdempotencyKeys: 1})).IdempotencyKeys)
	})
}

// If the clock was set back, the time of a message may be in the future. Its age then
// begins with the restored broker.
func TestAFutureMessageAgesFromNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		m := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}
		_, err := b.Publish(m, 0, time.Now().Add(time.Hour))
		require.NoError(t, err)
		next := successor(t, b, broker.Config{HistoryAge: time.Second})
		next.Sweep(time.Now().Add(time.Second - 1))
		require.Equal(t, "1", readTopic(t, next, "a@EPOCH:0", 10))
		next.Sweep(time.Now().Add(time.Second))
		require.Equal(t, "gap(expired 0-1)", readTopic(t, next, "a@EPOCH:0", 10))
	})
}

func TestASuccessorAppliesItsOwnBounds(t *testing.T) {
	b := newBroker(broker.Config{})
	for range 10 {
		publish(t, b, "a")
	}
	next := successor(t, b, broker.Config{HistoryMessages: 3})
	require.Equal(t, "gap(evicted 0-7) 8 9 10", readTopic(t, next, "a@EPOCH:0", 20))

	publish(t, b, "b")
	next = successor(t, b, broker.Config{MaxTopics: 1})
	require.Equal(t, 1, gaugesOf(next).Topics)
	require.Positive(t, floorOf(t, next), "the offsets of a topic that was dropped are not used again")
}

// A successor with a smaller budget keeps the newest messages of all topics. It stays
// within the budget also while it reads.
func TestASuccessorHoldsItsMemoryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		for range 1000 {
			for _, topic := range []string{"a", "b", "c"} {
				publish(t, b, topic)
			}
			time.Sleep(time.Millisecond)
		}
		const budget = 64 << 10
		state := saved(t, b)
		reading := newReader(bytes.NewReader(state), newBroker(broker.Config{MemoryBudget: budget}))
		require.NoError(t, reading.next(reading.head))
		for !reading.over {
			require.NoError(t, reading.next(reading.line))
			require.LessOrEqual(t, used(reading.broker), int64(budget+1<<10), "a new topic counts before others are evicted")
		}
		next := successor(t, b, broker.Config{MemoryBudget: budget})
		require.LessOrEqual(t, used(next), int64(budget))
		require.Greater(t, used(next), int64(budget/2))
		for _, topic := range []string{"a", "b", "c"} {
			state, _ := next.Topic(topic)
			require.EqualValues(t, 1000, state.Position.Offset)
			require.Positive(t, state.Oldest.Offset)
		}
	})
}

// sealed returns lines with a valid end.
func sealed(lines string) []byte {
	sum := sha256.Sum256([]byte(lines))
	return fmt.Appendf([]byte(lines), `{"end":{"lines":%d,"sha256":%q}}`+"\n", strings.Count(lines, "\n"), hex.EncodeToString(sum[:]))
}

const (
	savedBegin  = `{"pubsubd_state":1,"epoch":"k3","floor":5,"saved":1}` + "\n"
	savedKey    = `{"result":{"scope":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","fingerprint":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","position":"a@k3:7","time":1700000000000}}` + "\n"
	savedTopicA = `{"topic":{"name":"a","head":9,"lost":6,"reason":"evicted"}}` + "\n"
)

func TestAnInvalidStateIsRejected(t *testing.T) {
	_, err := restore(broker.Config{}, sealed(savedBegin+savedTopicA+`{"message":{"offset":7,"time":1,"data":"MQ=="}}`+"\n"+savedKey))
	require.NoError(t, err)
	whole := string(sealed(savedBegin + savedTopicA))
	for name, tt := range map[string]struct{ text, why string }{
		"nothing":             {"", "line 1: the file is truncated"},
		"another program's":   {"# settings\n", "line 1: this is not a state file of pubsubd"},
		"another's JSON":      {`{"version":1}` + "\n", "not a state file of pubsubd"},
		"another version":     {`{"pubsubd_state":2,"epoch":"k3"}` + "\n", "version 2"},
		"no epoch":            {strings.Replace(whole, "k3", "K3", 1), "epoch"},
		"floor too high":      {strings.Replace(whole, `"floor":5`, `"floor":9007199254740992`, 1), "floor"},
		"cut in a line":       {whole[:len(savedBegin)+10], "line 2: the file is truncated"},
		"cut between lines":   {savedBegin + savedTopicA, "line 3: the file is truncated"},
		"end not ended":       {whole[:len(whole)-1], "line 3: the file is truncated"},
		"changed":             {strings.Replace(whole, `"head":9`, `"head":8`, 1), "changed"},
		"a line less":         {savedBegin + whole[len(savedBegin)+len(savedTopicA):], "line 2: the file ends after 1 lines"},
		"more behind":         {whole + "\n", "more data follows"},
		"not JSON":            {string(sealed(savedBegin + "topic\n")), "line 2: it cannot be read"},
		"an unknown kind":     {string(sealed(savedBegin + `{"moon":{}}` + "\n")), "does not know its kind"},
		"a topic twice":       {string(sealed(savedBegin + savedTopicA + savedTopicA)), "twice"},
		"no topic's name":     {string(sealed(savedBegin + strings.Replace(savedTopicA, `"a"`, `"a b"`, 1))), `topic "a b"`},
		"lost beyond head":    {string(sealed(savedBegin + strings.Replace(savedTopicA, `"lost":6`, `"lost":10`, 1))), "do not rise: born 0, lost 10, head 9"},
		"born beyond lost":    {string(sealed(savedBegin + strings.Replace(savedTopicA, `"lost":6`, `"born":7,"lost":6`, 1))), "do not rise: born 7, lost 6, head 9"},
		"no reason":           {string(sealed(savedBegin + strings.Replace(savedTopicA, "evicted", "bored", 1))), "bored"},
		"message first":       {string(sealed(savedBegin + `{"message":{"offset":1}}` + "\n")), "before its topic"},
		"message lost":        {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":6}}` + "\n")), "offset 6"},
		"message ahead":       {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":10}}` + "\n")), "offset 10"},
		"offsets do not rise": {string(sealed(savedBegin + savedTopicA + strings.Repeat(`{"message":{"offset":7,"time":1,"data":"MQ=="}}`+"\n", 2))), "line 4"},
		"no JSON in it":       {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"data":"MSA="}}` + "\n")), "not JSON"},
		"no CBOR in it":       {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"cbor":"AQE="}}` + "\n")), "not CBOR"},
		"CBOR beyond JSON":    {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"cbor":"QQE="}}` + "\n")), "not CBOR"},
		"empty CBOR":          {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"cbor":""}}` + "\n")), "not CBOR"},
		"CBOR with a type":    {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"type":"a/b","cbor":"AQ=="}}` + "\n")), "two payloads"},
		"CBOR beside JSON":    {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"data":"MQ==","cbor":"AQ=="}}` + "\n")), "two payloads"},
		"endless life":        {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"ttl_ms":9223372036854775807,"data":"MQ=="}}` + "\n")), "time is not valid"},
		"long key":            {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"data":"MQ==","key":"` + strings.Repeat("k", 256) + `"}}` + "\n")), "too long"},
		"long by":             {string(sealed(savedBegin + savedTopicA + `{"message_by":{"offset":7,"time":1,"data":"MQ==","by":"` + strings.Repeat("b", 256) + `"}}` + "\n")), "by is too long"},
		"claims of nobody":    {string(sealed(savedBegin + savedTopicA + `{"message_by":{"offset":7,"time":1,"data":"MQ==","claims":{}}}` + "\n")), "claims are not valid"},
		"claims are a number": {string(sealed(savedBegin + savedTopicA + `{"message_by":{"offset":7,"time":1,"data":"MQ==","by":"b","claims":1}}` + "\n")), "claims are not valid"},
		"claims with spaces":  {string(sealed(savedBegin + savedTopicA + `{"message_by":{"offset":7,"time":1,"data":"MQ==","by":"b","claims":{ }}}` + "\n")), "claims are not valid"},
		"long claims":         {string(sealed(savedBegin + savedTopicA + `{"message_by":{"offset":7,"time":1,"data":"MQ==","by":"b","claims":{"a":"` + strings.Repeat("a", 250) + `"}}}` + "\n")), "claims are not valid"},
		"no digests":          {string(sealed(savedBegin + `{"result":{"scope":"MQ==","fingerprint":"MQ==","position":"a@k3:1","time":1}}` + "\n")), "result of the idempotency key"},
		"no position":         {string(sealed(savedBegin + `{"result":{"position":"a@k3:01"}}` + "\n")), "line 2: it cannot be read"},
		"another epoch's key": {string(sealed(savedBegin + strings.Replace(savedKey, "k3", "k4", 1))), "result of the idempotency key"},
		"endless line":        {savedBegin + strings.Repeat("x", maxLine+1), "line 2: it is longer"},
	} {
		b, err := restore(broker.Config{}, []byte(tt.text))
		require.ErrorContains(t, err, tt.why, name)
		require.Nil(t, b, name)
	}
}

// A state that is cut at any byte, or has any byte changed, is rejected.
func TestADamagedStateIsRejected(t *testing.T) {
	b := newBroker(broker.Config{})
	publish(t, b, "a")
	publish(t, b, "b")
	state := saved(t, b)
	for i := 0; i < len(state); i += exhaustive.Step(5) {
		_, err := restore(broker.Config{}, state[:i])
		require.Error(t, err, "cut at %d", i)
		damaged := bytes.Clone(state)
		damaged[i] ^= 0x20
		_, err = restore(broker.Config{}, damaged)
		require.Error(t, err, "byte %d of %q", i, state)
	}
}

// A state is rejected, or it is held within the bounds and can be saved again unchanged.
func FuzzRestore(f *testing.F) {
	message := `{"message":{"offset":7,"time":1700000000000,"ttl_ms":1000,"type":"a/b","data":"MQ==","id":"i","key":"k"}}` + "\n"
	f.Add(savedBegin)
	f.Add(savedBegin + savedTopicA + message + savedKey)
	f.Add(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1700000000000,"cbor":"AQ=="}}` + "\n")
	f.Add(savedBegin + savedTopicA + `{"message_by":{"offset":7,"time":1700000000000,"data":"MQ==","by":"b","claims":{"name":"B"}}}` + "\n")
	f.Add(savedBegin + savedTopicA + strings.Replace(savedTopicA, `"a"`, `"b"`, 1) + message)
	f.Fuzz(func(t *testing.T, lines string) {
		cfg := broker.Config{HistoryMessages: 3, MaxTopics: 2, HistoryAge: 100 * 365 * 24 * time.Hour}
		now := time.Now()
		open := func() *broker.Broker { return newBroker(cfg) }
		b, err := read(bytes.NewReader(sealed(lines)), open, now)
		if err != nil {
			return
		}
		consistent(t, b)
		for _, topic := range b.Topics(broker.NewListing([]string{">", "_>"}, func(string) bool { return true }), "", 100).Topics {
			require.NoError(t, wire.CheckTopic(topic.Topic))
			require.LessOrEqual(t, topic.Messages, 3)
		}
		next, err := read(bytes.NewReader(saved(t, b)), open, now)
		require.NoError(t, err)
		require.Equal(t, contents(t, b, now), contents(t, next, now))
	})
}

func TestIsCompactJSON(t *testing.T) {
	for data, want := range map[string]bool{`{"a":1,"a":2}`: true, `[1.0]`: true, `{"a": 1}`: false, ` 1`: false, "1\n": false, ``: false, `{"a":}`: false, "\"\xff\"": false} {
		require.Equal(t, want, isCompactJSON([]byte(data)), data)
	}
}

// publishClaimed publishes a message with a key.
func publishClaimed(b *broker.Broker, m *wire.Message, ttl time.Duration) (wire.Published, error) {
	c, r, _ := b.Claim("", m, ttl, time.Now())
	if c.IsHeld() {
		r, _ = b.Send(broker.Route{}, c, m, ttl, time.Now(), nil)
	}
	return r.Published, r.Err
}
