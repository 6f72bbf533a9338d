package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestTimeInBetweenCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{HistoryAge: time.Minute})
		publish(t, b, "a")
		time.Sleep(30 * time.Second)
		short := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}
		_, err := b.Publish(short, 20*time.Second, time.Now())
		require.NoError(t, err)
		publish(t, b, "a")
		state := saved(t, b)

		time.Sleep(19 * time.Second)
		next, err := restore(Config{HistoryAge: time.Minute}, state)
		require.NoError(t, err)
		require.Equal(t, "1 2 3", read(t, next, "a@oldest", 10))
		time.Sleep(time.Second)
		require.Equal(t, "1 gap(expired 1-2) 3", read(t, next, "a@oldest", 10))

		time.Sleep(10 * time.Second)
		next, err = restore(Config{HistoryAge: time.Minute}, state)
		require.NoError(t, err)
		require.Equal(t, "gap(expired 0-2) 3", read(t, next, "a@EPOCH:0", 10))
		consistent(t, next)
	})
}

// A publisher that lost the answer to the daemon's restart asks the successor.
func TestASuccessorAnswersIdempotencyKeysAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		require.Equal(t, uint64(1), publishOnce(t, b, "", keyed("a", "old", "1")))
		time.Sleep(DefaultIdempotencyWindow / 2)
		first, err := b.PublishOnce(t.Context(), "", keyed("a", "k", "2"), 0, time.Now())
		require.NoError(t, err)
		time.Sleep(DefaultIdempotencyWindow / 2)
		next := successor(t, b, Config{})
		require.Equal(t, 1, next.results.count(), "the other's window has passed")
		again, err := next.PublishOnce(t.Context(), "", keyed("a", "k", "2"), 0, time.Now())
		require.NoError(t, err)
		require.Equal(t, first, again)
		require.Zero(t, publishOnce(t, next, "", keyed("a", "k", "another")))
		require.Equal(t, uint64(3), publishOnce(t, next, "", keyed("a", "old", "1")))
		require.Equal(t, 1, successor(t, b, Config{IdempotencyKeys: 1}).results.count())
	})
}

// A clock that was set back makes no message younger than it is by more than that.
func TestAMessageOfTheFutureIsOfNow(t *testing.T) {
	b := newBroker(Config{})
	publish(t, b, "a")
	state := saved(t, b)
	past := time.Now().Add(-time.Hour)
	next, err := Restore(Config{HistoryAge: time.Second}, metrics.New("test"), bytes.NewReader(state), past)
	require.NoError(t, err)
	next.Sweep(past.Add(time.Second))
	require.Equal(t, "gap(expired 0-1)", read(t, next, "a@EPOCH:0", 10))
}

func TestASuccessorHasBoundsOfItsOwn(t *testing.T) {
	b := newBroker(Config{})
	for range 10 {
		publish(t, b, "a")
	}
	next := successor(t, b, Config{HistoryMessages: 3})
	require.Equal(t, "gap(evicted 0-7) 8 9 10", read(t, next, "a@EPOCH:0", 20))

	publish(t, b, "b")
	next = successor(t, b, Config{MaxTopics: 1})
	var g metrics.Gauges
	next.Gauges(&g)
	require.Equal(t, 1, g.Topics)
	require.Positive(t, next.floor.Load(), "what was not kept does not number anew")
}

// A successor with less memory keeps the newest of all topics, also while it reads.
func TestASuccessorHoldsItsMemoryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		for range 1000 {
			for _, topic := range []string{"a", "b", "c"} {
				publish(t, b, topic)
			}
			time.Sleep(time.Millisecond)
		}
		const budget = 64 << 10
		state := saved(t, b)
		reading := newRestoring(newBroker(Config{MemoryBudget: budget}), bytes.NewReader(state), time.Now())
		require.NoError(t, reading.begin())
		for !reading.over {
			require.NoError(t, reading.next())
			require.LessOrEqual(t, reading.broker.memory.Used(), int64(budget+budget/memory.Slack+1<<10))
		}
		next := successor(t, b, Config{MemoryBudget: budget})
		require.LessOrEqual(t, next.memory.Used(), int64(budget))
		require.Greater(t, next.memory.Used(), int64(budget/2))
		for _, topic := range []string{"a", "b", "c"} {
			state, _ := next.Topic(topic)
			require.EqualValues(t, 1000, state.Position.Offset)
			require.Positive(t, state.Oldest.Offset)
		}
	})
}

// sealed is lines with the end that belongs to them.
func sealed(lines string) []byte {
	sum := sha256.Sum256([]byte(lines))
	return fmt.Appendf([]byte(lines), `{"end":{"lines":%d,"sha256":%q}}`+"\n", strings.Count(lines, "\n"), hex.EncodeToString(sum[:]))
}

const (
	savedBegin  = `{"pubsubd_state":1,"epoch":"k3","floor":5,"saved":1}` + "\n"
	savedKey    = `{"result":{"scope":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","fingerprint":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","position":"a@k3:7","time":1700000000000}}` + "\n"
	savedTopicA = `{"topic":{"name":"a","head":9,"lost":6,"reason":"evicted"}}` + "\n"
)

func TestWhatIsNoStateIsToldFromOne(t *testing.T) {
	_, err := restore(Config{}, sealed(savedBegin+savedTopicA+`{"message":{"offset":7,"time":1,"data":"MQ=="}}`+"\n"+savedKey))
	require.NoError(t, err)
	whole := string(sealed(savedBegin + savedTopicA))
	for name, tt := range map[string]struct{ text, why string }{
		"nothing":             {"", "line 1: it is cut"},
		"another program's":   {"# settings\n", "line 1: it is no state of pubsubd"},
		"another's JSON":      {`{"version":1}` + "\n", "no state of pubsubd"},
		"another version":     {`{"pubsubd_state":2,"epoch":"k3"}` + "\n", "version 2"},
		"no epoch":            {strings.Replace(whole, "k3", "K3", 1), "epoch"},
		"floor too high":      {strings.Replace(whole, `"floor":5`, `"floor":9007199254740992`, 1), "floor"},
		"cut in a line":       {whole[:len(savedBegin)+10], "line 2: it is cut"},
		"cut between lines":   {savedBegin + savedTopicA, "line 3: it is cut"},
		"end not ended":       {whole[:len(whole)-1], "line 3: it is cut"},
		"changed":             {strings.Replace(whole, `"head":9`, `"head":8`, 1), "changed"},
		"a line less":         {savedBegin + whole[len(savedBegin)+len(savedTopicA):], "line 2: it ends after 1 lines"},
		"more behind":         {whole + "\n", "behind"},
		"not JSON":            {string(sealed(savedBegin + "topic\n")), "line 2: it cannot be read"},
		"an unknown kind":     {string(sealed(savedBegin + `{"moon":{}}` + "\n")), "no kind"},
		"a topic twice":       {string(sealed(savedBegin + savedTopicA + savedTopicA)), "twice"},
		"no topic's name":     {string(sealed(savedBegin + strings.Replace(savedTopicA, `"a"`, `"a b"`, 1))), `topic "a b"`},
		"lost beyond head":    {string(sealed(savedBegin + strings.Replace(savedTopicA, `"lost":6`, `"lost":10`, 1))), "lost more"},
		"no reason":           {string(sealed(savedBegin + strings.Replace(savedTopicA, "evicted", "bored", 1))), "bored"},
		"message first":       {string(sealed(savedBegin + `{"message":{"offset":1}}` + "\n")), "before its topic"},
		"message lost":        {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":6}}` + "\n")), "offset 6"},
		"message ahead":       {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":10}}` + "\n")), "offset 10"},
		"offsets do not rise": {string(sealed(savedBegin + savedTopicA + strings.Repeat(`{"message":{"offset":7,"time":1,"data":"MQ=="}}`+"\n", 2))), "line 4"},
		"no JSON in it":       {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"data":"MSA="}}` + "\n")), "not the JSON"},
		"no CBOR in it":       {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"cbor":"AQE="}}` + "\n")), "not the CBOR"},
		"CBOR beyond JSON":    {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"cbor":"QQE="}}` + "\n")), "not the CBOR"},
		"empty CBOR":          {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"cbor":""}}` + "\n")), "not the CBOR"},
		"CBOR with a type":    {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"type":"a/b","cbor":"AQ=="}}` + "\n")), "two payloads"},
		"CBOR beside JSON":    {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"data":"MQ==","cbor":"AQ=="}}` + "\n")), "two payloads"},
		"endless life":        {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"ttl_ms":9223372036854775807,"data":"MQ=="}}` + "\n")), "no time"},
		"long key":            {string(sealed(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1,"data":"MQ==","key":"` + strings.Repeat("k", 256) + `"}}` + "\n")), "too long"},
		"no digests":          {string(sealed(savedBegin + `{"result":{"scope":"MQ==","fingerprint":"MQ==","position":"a@k3:1","time":1}}` + "\n")), "result is none"},
		"no position":         {string(sealed(savedBegin + `{"result":{"position":"a@k3:01"}}` + "\n")), "line 2: it cannot be read"},
		"another epoch's key": {string(sealed(savedBegin + strings.Replace(savedKey, "k3", "k4", 1))), "result is none"},
		"endless line":        {savedBegin + strings.Repeat("x", maxSavedLine+1), "line 2: it is longer"},
	} {
		b, err := restore(Config{}, []byte(tt.text))
		require.ErrorContains(t, err, tt.why, name)
		require.Nil(t, b, name)
	}
}

// Every cut and every changed byte is noticed.
func TestDamageIsNoticed(t *testing.T) {
	b := newBroker(Config{})
	publish(t, b, "a")
	publish(t, b, "b")
	state := saved(t, b)
	for i := range state {
		_, err := restore(Config{}, state[:i])
		require.Error(t, err, "cut at %d", i)
		damaged := bytes.Clone(state)
		damaged[i] ^= 0x20
		_, err = restore(Config{}, damaged)
		require.Error(t, err, "byte %d of %q", i, state)
	}
}

// What is read is either refused or held within bounds, and comes back as it was.
func FuzzRestore(f *testing.F) {
	message := `{"message":{"offset":7,"time":1700000000000,"ttl_ms":1000,"type":"a/b","data":"MQ==","id":"i","key":"k"}}` + "\n"
	f.Add(savedBegin)
	f.Add(savedBegin + savedTopicA + message + savedKey)
	f.Add(savedBegin + savedTopicA + `{"message":{"offset":7,"time":1700000000000,"cbor":"AQ=="}}` + "\n")
	f.Add(savedBegin + savedTopicA + strings.Replace(savedTopicA, `"a"`, `"b"`, 1) + message)
	f.Fuzz(func(t *testing.T, lines string) {
		cfg := Config{HistoryMessages: 3, MaxTopics: 2, HistoryAge: 100 * 365 * 24 * time.Hour}
		now := time.Now()
		b, err := Restore(cfg, metrics.New("test"), bytes.NewReader(sealed(lines)), now)
		if err != nil {
			return
		}
		consistent(t, b)
		for i := range b.shards {
			for _, topic := range b.shards[i].all() {
				require.NoError(t, wire.CheckTopic(topic.name))
				require.LessOrEqual(t, topic.state().Messages, 3)
			}
		}
		next, err := Restore(cfg, metrics.New("test"), bytes.NewReader(saved(t, b)), now)
		require.NoError(t, err)
		require.Equal(t, contents(b, now), contents(next, now))
	})
}
