package frame

import (
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/stretchr/testify/require"
)

var someTopic = wire.Position{Topic: "a.b", Epoch: "k3", Offset: 18}

func someMessage() *wire.Message {
	return &wire.Message{Position: someTopic, Time: 1700000000000, Data: []byte(`{"n":1}`)}
}

// In a broadcast all subscribers need the bytes at the same time. They get the same ones,
// counted once.
func TestFrameIsEncodedOnce(t *testing.T) {
	for range 100 {
		var account memory.Account
		f := New(someMessage(), time.Time{}, 0, &account)
		first := make([]*byte, 8)
		var start, done sync.WaitGroup
		start.Add(1)
		for i := range first {
			done.Go(func() {
				start.Wait()
				first[i] = unsafe.SliceData(f.Bytes(NDJSON))
			})
		}
		start.Done()
		done.Wait()
		for _, p := range first {
			require.Same(t, first[0], p, "one backing array")
		}
		require.Equal(t, string(wire.Content{Message: someMessage()}.AppendJSON(nil)), string(f.Bytes(NDJSON)))
		require.Equal(t, int64(len(f.Bytes(NDJSON))), account.Of(memory.Encodings))
	}
}

func TestBytesOfAnEncodedFrameAllocateNothing(t *testing.T) {
	f := New(someMessage(), time.Time{}, 0, nil)
	f.Bytes(NDJSON)
	require.Zero(t, testing.AllocsPerRun(100, func() { f.Bytes(NDJSON) }))
}

func TestReleaseTakesEncodingsOffTheAccount(t *testing.T) {
	var account memory.Account
	account.Add(memory.Encodings, 1000)
	f := New(someMessage(), time.Time{}, 0, &account)
	require.Equal(t, int64(1000), account.Of(memory.Encodings), "nothing is encoded before it is needed")
	f.Bytes(NDJSON)
	require.Greater(t, account.Of(memory.Encodings), int64(1000))
	f.Release()
	require.Equal(t, int64(1000), account.Of(memory.Encodings))
	f.Release()
	require.Equal(t, int64(1000), account.Of(memory.Encodings), "twice is once")
	require.NotEmpty(t, f.Bytes(NDJSON), "queues may still hold it")
}

// The history evicts a frame that waits in a queue and was never encoded.
func TestEncodedAfterRelease(t *testing.T) {
	var account memory.Account
	f := New(someMessage(), time.Time{}, 0, &account)
	f.Release()
	require.Equal(t, string(wire.Content{Message: someMessage()}.AppendJSON(nil)), string(f.Bytes(NDJSON)))
	require.Zero(t, account.Of(memory.Encodings))
}

func TestReleaseWhileEncoding(t *testing.T) {
	var account memory.Account
	for range 1000 {
		f := New(someMessage(), time.Time{}, 0, &account)
		var done sync.WaitGroup
		done.Go(func() { f.Bytes(NDJSON) })
		done.Go(f.Release)
		done.Wait()
	}
	require.Zero(t, account.Of(memory.Encodings))
}

func TestFrameOfAMessage(t *testing.T) {
	m, accepted := someMessage(), time.Unix(1700000000, 0)
	f := New(m, accepted, time.Second, nil)
	require.Same(t, m, f.Message())
	require.Nil(t, f.Gap())
	require.Equal(t, accepted, f.Accepted)
	require.Equal(t, someTopic, f.Position())
	require.Equal(t, m.Size(), f.Size())
	f.Release()
}

func TestFrameOfAGap(t *testing.T) {
	g := someGap()
	f := NewGap(*g)
	require.Nil(t, f.Message())
	require.Equal(t, g, f.Gap())
	require.NotSame(t, g, f.Gap(), "the caller keeps its own")
	require.Equal(t, g.Position, f.Position())
	require.True(t, f.Accepted.IsZero())
	require.Positive(t, f.Size())
	require.Equal(t, string(wire.Content{Gap: g}.AppendJSON(nil)), string(f.Bytes(NDJSON)))
	f.Release()
}

func TestFrameOfMovedPositions(t *testing.T) {
	other := wire.Position{Topic: "c", Epoch: "k3", Offset: 7}
	f := NewMoved([]wire.Position{someTopic, other})
	require.Nil(t, f.Message())
	require.Nil(t, f.Gap())
	require.Equal(t, []wire.Position{someTopic, other}, f.Moved().Positions)
	require.Equal(t, someTopic, f.Position())
	require.Equal(t, 2*NewGap(*someGap()).Size(), f.Size())
	require.Equal(t, string(wire.Content{Moved: f.Moved()}.AppendJSON(nil)), string(f.Bytes(NDJSON)))
	require.Equal(t, string(wire.Content{Moved: f.Moved()}.AppendCBOR(nil)), string(f.Bytes(CBOR)))
	message := New(someMessage(), time.Time{}, 0, nil)
	require.Nil(t, message.Moved())
	for n, frames := range [][]*Frame{{}, {message}, {message, NewGap(*someGap())}} {
		require.Equal(t, n, Counted(frames))
		require.Equal(t, n, Counted(append(frames, f)), "acks do not count it")
	}
}

func TestExpired(t *testing.T) {
	accepted := time.Unix(1700000000, 0)
	for _, tt := range []struct {
		name string
		f    *Frame
		at   time.Duration // after it was accepted
		want bool
	}{
		{"before its time", New(someMessage(), accepted, time.Second, nil), time.Second - 1, false},
		{"at its time", New(someMessage(), accepted, time.Second, nil), time.Second, true},
		{"clock set back", New(someMessage(), accepted, time.Second, nil), -time.Hour, false},
		{"no ttl", New(someMessage(), accepted, 0, nil), 1000 * time.Hour, false},
		{"gap", NewGap(*someGap()), 1000 * time.Hour, false},
	} {
		require.Equal(t, tt.want, tt.f.Expired(accepted.Add(tt.at)), tt.name)
	}
}

func TestContentType(t *testing.T) {
	require.Equal(t, "application/x-ndjson", NDJSON.ContentType())
}

func BenchmarkFrameBytes(b *testing.B) {
	f := New(someMessage(), time.Time{}, 0, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			f.Bytes(NDJSON)
		}
	})
}

func BenchmarkAppendMessage(b *testing.B) {
	m := someMessage()
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		dst = wire.Content{Message: m}.AppendJSON(dst[:0])
	}
}

func TestAMessageIsEncodedIntoOneAllocation(t *testing.T) {
	for _, m := range []*wire.Message{
		{Position: someTopic, Time: 1700000000000, Data: []byte(`{"price":12.5,"size":100}`)},
		{Position: someTopic, Time: 1700000000000, Type: "application/octet-stream", Data: make([]byte, 10_000)},
	} {
		f := New(m, time.Time{}, 0, nil)
		room := make([]byte, 0, 64<<10)
		others := testing.AllocsPerRun(100, func() { wire.Content{Message: m}.AppendJSON(room) }) // to read the type
		require.Equal(t, others+1, testing.AllocsPerRun(100, func() { form{format: NDJSON}.encode(f) }))
	}
}

func someGap() *wire.Gap {
	return &wire.Gap{Topic: "a.b", Reason: wire.GapSlow, After: wire.Position{Topic: "a.b", Epoch: "k2", Offset: 9}, Position: wire.Position{Topic: "a.b", Epoch: "k3", Offset: 19}}
}
