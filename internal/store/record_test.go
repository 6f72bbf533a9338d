package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const testKey = 0x5eed

func readerOf(b []byte) *recordReader {
	return &recordReader{file: "1.log", from: bufio.NewReader(bytes.NewReader(b)), size: int64(len(b)), key: testKey}
}

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
		{Op: broker.OpPublish, Message: &wire.Message{Position: at("a", maxOffset), Type: "a/b", Data: []byte{}}},
		{Op: broker.OpDelete, Message: &wire.Message{Position: at("a", 10)}},
		{Op: broker.OpLost, Message: &wire.Message{Position: at("a", 11)}, State: &broker.State{Reason: wire.GapEvicted}},
		{Op: broker.OpForget, Message: &wire.Message{Position: at("a", 12)}, State: &broker.State{Lost: 10}},
		{Op: broker.OpEpoch, Message: &wire.Message{Position: at("", 13)}, State: &broker.State{Forgotten: 5}},
		{Op: broker.OpTopic, Message: &wire.Message{Position: at("a", 14)}, State: &broker.State{Born: 2, Lost: 3, Reason: wire.GapExpired}},
		{Op: broker.OpKey, Message: &wire.Message{Position: at("a", 15), Time: 1}, Key: key},
	}
}

// What is written is read again, field by field. A field that a record forgets fails here.
func TestEntriesSurviveARecord(t *testing.T) {
	var b []byte
	var err error
	all := entriesForTests()
	for i := range all {
		b, err = appendEntry(b, &all[i], all[i].Message.Position.Offset, testKey)
		require.NoError(t, err)
	}
	r := readerOf(b)
	for _, want := range all {
		got, err := r.next()
		require.NoError(t, err)
		e, err := got.entry("k3")
		require.NoError(t, err)
		require.Equal(t, want, e)
	}
	_, err = r.next()
	require.ErrorIs(t, err, io.EOF)
	full := reflect.ValueOf(*all[0].Message)
	for i := range full.NumField() {
		if name := full.Type().Field(i).Name; name != "CBOR" {
			require.False(t, full.Field(i).IsZero(), "the test has no value for wire.Message.%s", name)
		}
	}
}

// A record that was cut or changed anywhere is not valid, and neither is one of another
// file, nor one that a message contains.
func TestADamagedRecordIsNoRecord(t *testing.T) {
	all := entriesForTests()
	good, err := appendEntry(nil, &all[0], 7, testKey)
	require.NoError(t, err)
	wantBad := func(b []byte, partial bool) {
		t.Helper()
		_, err := readerOf(b).next()
		var bad *badRecord
		require.ErrorAs(t, err, &bad)
		require.Equal(t, partial, bad.partial, bad)
	}
	for i := 1; i < len(good); i++ {
		wantBad(good[:i], true)
	}
	for i := range good {
		for bit := range 8 {
			damaged := bytes.Clone(good)
			damaged[i] ^= 1 << bit
			_, err := readerOf(damaged).next()
			require.Error(t, err, "byte %d", i)
		}
	}
	wantBad(make([]byte, 512), false)
	r := readerOf(good)
	r.key = keyOfFile(1, 2)
	_, err = r.next()
	require.ErrorContains(t, err, "1.log has a bad record at byte 0: its checksum does not match")
	require.NotEqual(t, keyOfFile(1, 2), keyOfFile(1, 3))
	require.NotEqual(t, keyOfFile(1, 2), keyOfFile(2, 2))
}

// A message that is larger than a record can be is an error, not a file that cannot be read.
func TestARecordIsBounded(t *testing.T) {
	e := broker.Entry{Message: &wire.Message{Position: wire.Position{Topic: "a"}, Data: make([]byte, maxBody)}}
	_, err := appendEntry(nil, &e, 1, testKey)
	require.ErrorContains(t, err, "a record must have at most 16777216")
	long := beginRecord(nil, kindPublish, 1)
	binary.LittleEndian.PutUint32(long[4:], maxBody+1)
	sum, _ := sums(long, nil, testKey)
	binary.LittleEndian.PutUint32(long, sum)
	_, err = readerOf(append(long, make([]byte, 100)...)).next()
	require.ErrorContains(t, err, "its length must be at most 16777216")
}

// The contents of a record are checked like a request, whatever its checksum says.
func TestARecordIsNotTrusted(t *testing.T) {
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
		"at most 90071992547": message(wire.Message{Data: []byte("1"), Position: at("a", maxOffset+1)}),
	} {
		b, err := appendEntry(nil, &e, e.Message.Position.Offset, testKey)
		require.NoError(t, err)
		r, err := readerOf(b).next()
		require.NoError(t, err)
		_, err = r.entry("k3")
		require.ErrorContains(t, err, want)
	}
	for _, r := range []record{{kind: kindEnd + 1}, {kind: kindDelete, body: []byte{1, 'a', 0}}, {kind: kindKey, body: []byte{1, 'a', 0, 1}}, {kind: kindPublish, body: []byte{9}}} {
		_, err := r.entry("k3")
		require.Error(t, err)
	}
}

// Whatever a file holds, reading it ends, with records that can be written again.
func FuzzRecords(f *testing.F) {
	var b []byte
	all := entriesForTests()
	for i := range all {
		b, _ = appendEntry(b, &all[i], all[i].Message.Position.Offset, testKey)
	}
	f.Add(b, false)
	f.Add(b[:len(b)-1], true)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) >= recordHeadBytes && len(b) < maxBody { // the checksum is right
			_ = endRecord(b, 0, testKey)
		}
		r := readerOf(b)
		for {
			before := r.at
			got, err := r.next()
			var bad *badRecord
			if errors.As(err, &bad) || errors.Is(err, io.EOF) {
				return
			}
			require.NoError(t, err)
			require.Greater(t, r.at, before)
			e, err := got.entry("k3")
			if err != nil {
				continue
			}
			again, err := appendEntry(nil, &e, got.number, testKey)
			require.NoError(t, err)
			next, err := readerOf(again).next()
			require.NoError(t, err)
			same, err := next.entry("k3")
			require.NoError(t, err)
			require.Equal(t, e, same)
		}
	})
}

func BenchmarkAppendEntry(b *testing.B) {
	data := make([]byte, 100)
	for i := range data {
		data[i] = byte('0' + rand.IntN(10))
	}
	e := broker.Entry{Message: &wire.Message{Position: wire.Position{Topic: "prices.acme.frankfurt"}, Time: 1700000000000, Data: data}}
	var to []byte
	b.ReportAllocs()
	for b.Loop() {
		to, _ = appendEntry(to[:0], &e, 1, testKey)
	}
}
