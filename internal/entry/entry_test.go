package entry

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// entriesForTests has an entry of each kind.
func entriesForTests() []broker.Entry {
	at := func(topic string, offset uint64) wire.Position {
		return wire.Position{Topic: topic, Epoch: "k3", Offset: offset}
	}
	key := broker.Key{Scope: broker.Digest{1, 2}, Print: broker.Digest{3}}
	full := &wire.Message{
		Position: at("a.b", 7), Time: 1700000000000, Type: "text/plain", Data: []byte("two\x00"), ID: "i", Key: "schlüssel",
		Client: "c-1", By: "alice", Claims: []byte(`{"name":"Alice"}`),
	}
	return []broker.Entry{
		{Op: broker.OpPublish, Message: full, TTL: time.Second, Key: key},
		{Op: broker.OpPublish, Message: &wire.Message{Position: at("a", 8), Data: []byte("1")}},
		{Op: broker.OpPublish, Message: &wire.Message{Position: at("a", 9), Data: []byte{1}, CBOR: true}},
		{Op: broker.OpPublish, Message: &wire.Message{Position: at("a", MaxOffset), Type: "a/b", Data: []byte{}}},
		{Op: broker.OpDelete, Message: &wire.Message{Position: at("a", 10)}},
		{Op: broker.OpLost, Message: &wire.Message{Position: at("a", 11)}, State: &broker.State{Reason: wire.GapEvicted}},
		{Op: broker.OpForget, Message: &wire.Message{Position: at("a", 12)}, State: &broker.State{Lost: 10}},
		{Op: broker.OpEpoch, Message: &wire.Message{Position: at("", 13)}, State: &broker.State{Forgotten: 5}},
		{Op: broker.OpTopic, Message: &wire.Message{Position: at("a", 14)}, State: &broker.State{Born: 2, Lost: 3, Reason: wire.GapExpired}},
		{Op: broker.OpKey, Message: &wire.Message{Position: at("a", 15), Time: 1}, Key: key},
	}
}

// reread returns what Read returns of what Append appends.
func reread(e broker.Entry) (broker.Entry, error) {
	at := e.Message.Position
	return Read(KindOf(e.Op), Append(nil, &e), wire.Position{Epoch: at.Epoch, Offset: at.Offset})
}

// What is written is read again, field by field. A field that an entry forgets fails here.
func TestEntriesSurvive(t *testing.T) {
	all := entriesForTests()
	for _, want := range all {
		got, err := reread(want)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for op := range kinds {
		require.True(t, slices.ContainsFunc(all, func(e broker.Entry) bool { return e.Op == broker.Op(op) }), "the test has no entry of kind %d", kinds[op])
	}
	full := reflect.ValueOf(*all[0].Message)
	for i := range full.NumField() {
		if name := full.Type().Field(i).Name; name != "CBOR" {
			require.False(t, full.Field(i).IsZero(), "the test has no value for wire.Message.%s", name)
		}
	}
}

// An entry is checked like a request, whatever its checksum said.
func TestAnEntryIsNotTrusted(t *testing.T) {
	at := func(topic string, offset uint64) wire.Position {
		return wire.Position{Topic: topic, Epoch: "k3", Offset: offset}
	}
	message := func(m wire.Message) broker.Entry {
		if m.Position.Topic == "" {
			m.Position = at("a", 1)
		}
		return broker.Entry{Message: &m}
	}
	for want, e := range map[string]broker.Entry{
		"data is not JSON":    message(wire.Message{Data: []byte(" 1")}),
		"time is not valid":   message(wire.Message{Data: []byte("1"), Time: -1}),
		"too long":            message(wire.Message{Data: []byte("1"), Key: strings.Repeat("k", 256)}),
		"empty segment":       message(wire.Message{Data: []byte("1"), Position: at("a..b", 1)}),
		"by is too long":      message(wire.Message{Data: []byte("1"), By: strings.Repeat("b", wire.MaxByBytes+1)}),
		"claims are not":      message(wire.Message{Data: []byte("1"), By: "ann", Claims: []byte("[]")}),
		"unknown gap reason":  {Op: broker.OpLost, Message: &wire.Message{Position: at("a", 1)}, State: &broker.State{Reason: "why"}},
		"has no gap reason":   {Op: broker.OpTopic, Message: &wire.Message{Position: at("a", 1)}, State: &broker.State{}},
		"offsets contradict":  {Op: broker.OpTopic, Message: &wire.Message{Position: at("a", 1)}, State: &broker.State{Lost: 2, Reason: wire.GapEvicted}},
		"forgets the topic":   {Op: broker.OpForget, Message: &wire.Message{Position: at("a", 1)}, State: &broker.State{Lost: 2}},
		"only partition 0":    {Op: broker.OpEpoch, Message: &wire.Message{}, State: &broker.State{Partition: 1}},
		"at most 90071992547": message(wire.Message{Data: []byte("1"), Position: at("a", MaxOffset+1)}),
	} {
		_, err := reread(e)
		require.ErrorContains(t, err, want)
	}
}

// A newer release has written a kind, or a version, that this one does not know.
func TestAnUnknownEntryIsRefused(t *testing.T) {
	for k, want := range map[Kind]string{
		0: "kind 0, version 0", 20: "kind 20, version 0", 14: "kind 14, version 0",
		Publish | 1<<5: "kind 1, version 1", Key | 3<<5 | Optional: "kind 7, version 3",
	} {
		_, err := Read(k, Append(nil, &entriesForTests()[0]), wire.Position{Epoch: "k3"})
		require.Equal(t, Unknown{k}, err)
		require.ErrorContains(t, err, "a newer release of pubsubd wrote an entry of "+want+", which this one does not know: start that release")
	}
	for k := range Kind(255) {
		require.Equal(t, k&31 < 8 || k&31 > 15, k.IsEntry())
	}
	_, err := Read(Delete|Optional, []byte{1, 'a'}, wire.Position{Epoch: "k3"})
	require.NoError(t, err, "it is known")
}

// The bytes of an entry of each kind are cut, changed and continued. Whatever is still read
// would be written again.
func TestADamagedEntryIsNoOther(t *testing.T) {
	for _, e := range entriesForTests() {
		k, good := KindOf(e.Op), Append(nil, &e)
		for i := range good {
			_, err := Read(k, good[:i], e.Message.Position)
			require.True(t, err != nil || k == Publish, "kind %d, %d bytes", k, i)
			for bit := range 8 {
				changed := bytes.Clone(good)
				changed[i] ^= 1 << bit
				wantStable(t, k, changed)
			}
		}
		_, err := Read(k, append(good, 0), e.Message.Position)
		require.True(t, err != nil || k == Publish, "kind %d", k)
	}
}

func wantStable(t *testing.T, k Kind, body []byte) {
	t.Helper()
	e, err := Read(k, body, wire.Position{Epoch: "k3", Offset: 1})
	if err != nil {
		return
	}
	again, err := reread(e)
	require.NoError(t, err)
	require.Equal(t, e, again)
}

// Whatever a body holds, reading it ends, with an entry that can be written again.
func FuzzRead(f *testing.F) {
	for _, e := range entriesForTests() {
		f.Add(byte(KindOf(e.Op)), Append(nil, &e))
	}
	f.Fuzz(func(t *testing.T, k byte, body []byte) { wantStable(t, Kind(k), body) })
}

func TestIsCompactJSON(t *testing.T) {
	for data, want := range map[string]bool{`{"a":1,"a":2}`: true, `[1.0]`: true, `{"a": 1}`: false, ` 1`: false, "1\n": false, ``: false, `{"a":}`: false, "\"\xff\"": false} {
		require.Equal(t, want, isCompactJSON([]byte(data)), data)
	}
}

func BenchmarkAppend(b *testing.B) {
	data := make([]byte, 100)
	for i := range data {
		data[i] = byte('0' + rand.IntN(10))
	}
	e := broker.Entry{Message: &wire.Message{Position: wire.Position{Topic: "prices.acme.frankfurt"}, Time: 1700000000000, Data: data}}
	var to []byte
	b.ReportAllocs()
	for b.Loop() {
		to = Append(to[:0], &e)
	}
}
