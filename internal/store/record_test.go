package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
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

// entriesForTests has entries of several kinds.
func entriesForTests() []broker.Entry {
	at := wire.Position{Topic: "a.b", Epoch: "k3", Offset: 7}
	return []broker.Entry{
		{Op: broker.OpPublish, Message: &wire.Message{Position: at, Time: 1700000000000, Type: "text/plain", Data: []byte("two\x00"), By: "alice"}, TTL: time.Second},
		{Op: broker.OpDelete, Message: &wire.Message{Position: at}},
		{Op: broker.OpTopic, Message: &wire.Message{Position: at}, State: &broker.State{Born: 2, Lost: 3, Reason: wire.GapExpired}},
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
	long := make([]byte, recordHeadBytes)
	binary.LittleEndian.PutUint32(long[4:], maxBody+1)
	binary.LittleEndian.PutUint32(long, crc32.Update(testKey, castagnoli, long[4:17]))
	_, err = readerOf(append(long, make([]byte, 100)...)).next()
	require.ErrorContains(t, err, "its length must be at most 16777216")
}

// Whatever a file holds, reading it ends, with records that can be written again. A broker holds
// what they say within its bounds.
func FuzzRecords(f *testing.F) {
	var b []byte
	all := entriesForTests()
	for i := range all {
		b, _ = appendEntry(b, &all[i], all[i].Message.Position.Offset, testKey)
	}
	f.Add(b, false)
	topic := broker.Entry{Op: broker.OpTopic, Message: &wire.Message{Position: wire.Position{Topic: "c", Offset: 9}}, State: &broker.State{Lost: 3, Reason: wire.GapEvicted}}
	b, _ = appendEntry(nil, &topic, 9, testKey)
	message := broker.Entry{Op: broker.OpPublish, Message: &wire.Message{Position: wire.Position{Topic: "c", Offset: 7}, Data: []byte("1")}}
	b, _ = appendEntry(b, &message, 7, testKey)
	f.Add(b, false)
	f.Add(b[:len(b)-1], true)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) >= recordHeadBytes && len(b) < maxBody { // the checksum is right
			_ = endRecord(b, 0, kind(b[16]), binary.LittleEndian.Uint64(b[8:]), testKey)
		}
		r := readerOf(b)
		holds := newBroker(broker.Config{HistoryMessages: 3, MaxTopics: 2, HistoryAge: 100 * 365 * 24 * time.Hour})
		_, err := holds.Apply(broker.Entry{Op: broker.OpEpoch, Message: &wire.Message{Position: wire.Position{Epoch: "k3"}}, State: &broker.State{}})
		require.NoError(t, err)
		defer func() { consistent(t, holds) }()
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
			if got.number > 0 { // as in each file
				_, err = holds.Apply(e)
				require.NoError(t, err)
			}
		}
	})
}
