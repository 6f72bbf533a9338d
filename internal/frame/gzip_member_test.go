package frame

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"testing"
	"time"
	"unsafe"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/stretchr/testify/require"
)

// decompressed reads one member and checks that nothing follows.
func decompressed(t *testing.T, member []byte) string {
	t.Helper()
	in := bufio.NewReader(bytes.NewReader(member))
	r, err := gzip.NewReader(in)
	require.NoError(t, err)
	r.Multistream(false)
	got, err := io.ReadAll(r)
	require.NoError(t, err, "with the check sum and the length")
	_, err = in.ReadByte()
	require.ErrorIs(t, err, io.EOF, "there is nothing behind it")
	return string(got)
}

// wantMember checks that the member of lead and frames decompresses to them. It returns the
// member's size, or -1 if deflating does not pay.
func wantMember(t *testing.T, least int, lead string, frames ...*Frame) int {
	t.Helper()
	m := TakeGzipMember(NDJSON, least, []byte(lead), frames)
	if m == nil {
		return -1
	}
	defer m.Release()
	want := lead
	for _, f := range frames {
		want += string(f.Bytes(NDJSON))
	}
	var member []byte
	for _, p := range m.Parts() {
		member = append(member, p.Bytes...)
	}
	require.Equal(t, want, decompressed(t, member))
	require.Equal(t, len(want), m.Raw())
	require.Equal(t, len(member), m.Size())
	return m.Size()
}

const someLead = `{"hello":{}}` + "\n"

// Blocks fit behind each other in any order. Short or incompressible messages and gaps go
// between them as they are.
func TestAMemberIsBuiltOfBlocks(t *testing.T) {
	long, longer := textFrame(chatter(2000), nil), textFrame(chatter(90_000), nil)
	short, gap := textFrame("short", nil), NewGap(*someGap())
	for _, frames := range [][]*Frame{
		{long}, {long, longer}, {longer, long}, {long, long, long}, {short, long}, {long, short},
		{gap, short, long, short, gap, longer, gap}, {long, gap, gap, gap},
	} {
		require.Positive(t, wantMember(t, 1<<10, "", frames...))
		require.Positive(t, wantMember(t, 1<<10, someLead, frames...))
	}
	for _, frames := range [][]*Frame{nil, {short}, {gap}, {gap, short, short}} {
		require.Equal(t, -1, wantMember(t, 1<<10, someLead, frames...), "nothing is saved")
	}
	require.Equal(t, -1, wantMember(t, -1, "", long), "it is off")
}

// A stored block takes up to 65,535 bytes.
func TestStoredBlocks(t *testing.T) {
	long := textFrame(chatter(2000), nil)
	block, _ := long.Deflated(NDJSON, 2000)
	around := MemberSize(block)
	stored := func(line int) *Frame { // a line of so many bytes, as if it did not pay
		f := textFrame(noise(line-len(textFrame("", nil).Bytes(NDJSON))), nil)
		require.Len(t, f.Bytes(NDJSON), line)
		doesNotPay := &encoding{form: form{format: NDJSON, deflated: true}}
		doesNotPay.older.Store(f.encoded.Load())
		f.encoded.Store(doesNotPay)
		return f
	}
	for _, tt := range []struct {
		lines  []int
		blocks int
	}{
		{[]int{200}, 1}, {[]int{200, 300, 400}, 1},
		{[]int{65_535}, 1}, {[]int{65_536}, 2}, {[]int{131_069}, 2}, {[]int{131_070}, 2}, {[]int{131_071}, 3},
		{[]int{65_335, 200, 200}, 2}, {[]int{65_335, 200}, 1}, {[]int{65_335, 201}, 2}, {[]int{200, 200_000, 200}, 4},
	} {
		var frames []*Frame
		total := 0
		for _, line := range tt.lines {
			frames = append(frames, stored(line))
			total += line
		}
		size := around + total + tt.blocks*storedHeader
		require.Equal(t, size, wantMember(t, 0, "", append(frames, long)...), "%v", tt.lines)
		require.Equal(t, size, wantMember(t, 0, "", append([]*Frame{long}, frames...)...), "%v", tt.lines)
	}
}

// In a burst to browsers one frame is one answer, made once for each head.
func TestAWholeAnswerInGzipIsMadeOnce(t *testing.T) {
	var account memory.Account
	f := textFrame(chatter(2000), &account)
	plain := &Head{BeforeLength: []byte("plain "), AfterLength: []byte(": "), Second: 1}
	packed := &Head{Gzip: true, BeforeLength: []byte("gzip "), AfterLength: []byte(": "), Second: 1}
	wantWhole(t, f, plain)
	whole := f.Whole(packed)
	block, pays := f.Deflated(NDJSON, 0)
	require.True(t, pays)
	head := packed.Append(nil, MemberSize(block))
	require.Equal(t, string(head), string(whole[:len(head)]))
	require.Equal(t, string(f.Bytes(NDJSON)), decompressed(t, whole[len(head):]))
	require.Same(t, unsafe.SliceData(whole), unsafe.SliceData(f.Whole(packed)))
	require.Zero(t, testing.AllocsPerRun(100, func() { f.Whole(packed); f.Whole(plain) }))
	require.Equal(t, sizes(f, plain, packed)+int64(len(block)), account.Of(memory.Encodings))
	f.Release()
	require.Zero(t, account.Of(memory.Encodings))
}

// Members reuse memory, which keeps no message alive.
func TestAReleasedMemberHoldsNoMessage(t *testing.T) {
	m := TakeGzipMember(NDJSON, 1<<10, nil, []*Frame{textFrame(chatter(2000), nil), textFrame("short", nil)})
	parts := m.parts
	m.Release()
	for _, p := range parts {
		require.Nil(t, p.Bytes, "it would be kept for as long as the pool")
	}
}

// Any messages survive compression.
func FuzzMember(f *testing.F) {
	f.Add([]byte("short"), []byte(chatter(2000)), []byte(noise(300)), 100, true)
	f.Add([]byte{}, []byte(noise(70_000)), []byte(chatter(70_000)), 0, false)
	f.Fuzz(func(t *testing.T, a, b, c []byte, least int, says bool) {
		lead := ""
		if says {
			lead = someLead
		}
		frames := []*Frame{NewGap(*someGap())}
		for _, data := range [][]byte{a, b, c, a} {
			m := &wire.Message{Position: someTopic, Type: "application/octet-stream", Data: data}
			frames = append(frames, New(m, time.Time{}, 0, nil))
		}
		wantMember(t, least, lead, frames...)
	})
}

// One message to a thousand subscribers, with a shared block and with a compressor for each
// connection.
func BenchmarkToAThousand(b *testing.B) {
	const subscribers = 1000
	head := &Head{Gzip: true, BeforeLength: []byte("Content-Length: "), AfterLength: []byte("\r\n\r\n")}
	for _, size := range []int{1 << 10, 4 << 10, 20 << 10} {
		text := chatter(size)
		b.Run(fmt.Sprint(size>>10, "KiB/once"), func(b *testing.B) {
			for b.Loop() {
				f := textFrame(text, nil)
				for range subscribers {
					f.Whole(head)
				}
			}
		})
		b.Run(fmt.Sprint(size>>10, "KiB/each"), func(b *testing.B) {
			for b.Loop() {
				f := textFrame(text, nil)
				for range subscribers {
					deflated(f.Bytes(NDJSON))
				}
			}
		})
	}
}

// An answer of ten messages, for one subscriber.
func BenchmarkTakeGzipMember(b *testing.B) {
	for _, size := range []int{1 << 10, 4 << 10, 20 << 10} {
		var frames []*Frame
		for range 10 {
			frames = append(frames, textFrame(chatter(size), nil))
		}
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				TakeGzipMember(NDJSON, 1, nil, frames).Release()
			}
		})
	}
}
