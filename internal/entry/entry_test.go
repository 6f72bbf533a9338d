package entry

import (
	"math/rand/v2"
	"reflect"
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
		"by is too long":      message(wire.Message{Data: []byte("1"), Claims: []byte("[]")}),
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
	for _, b := range [][]byte{{byte(Key) + 1}, {byte(Delete), 1, 'a', 0}, {byte(Key), 1, 'a', 0, 1}, {byte(Publish), 9}} {
		_, err := Read(Kind(b[0]), b[1:], wire.Position{Epoch: "k3"})
		require.Error(t, err)
	}
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
