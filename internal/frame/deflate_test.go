package frame

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/stretchr/testify/require"
)

// textFrame returns a message with a text as its payload.
func textFrame(text string, account *memory.Account) *Frame {
	m := &wire.Message{Position: someTopic, Time: 1700000000000, Type: "text/plain", Data: []byte(text)}
	return New(m, time.Time{}, 0, account)
}

// chatter returns a text of n bytes that deflates to a third. Deflating noise does not pay.
func chatter(n int) string {
	words := strings.Fields("price stock volume market open close high low trade order limit stop")
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[rng.IntN(len(words))] + " ")
	}
	return b.String()[:n]
}

func noise(n int) string {
	rng := rand.New(rand.NewPCG(uint64(n), 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(' ' + rng.IntN(95))
	}
	return strings.NewReplacer(`"`, "x", `\`, "y").Replace(string(b))
}

// wantBlock checks that block inflates to text by itself and ends on a whole byte.
func wantBlock(t *testing.T, text, block []byte) {
	t.Helper()
	require.Equal(t, "\x00\x00\xff\xff", string(block[len(block)-4:]), "it ends as a sync flush does")
	const final = "\x03\x00"
	got, err := io.ReadAll(flate.NewReader(io.MultiReader(bytes.NewReader(block), strings.NewReader(final))))
	require.NoError(t, err)
	require.Equal(t, string(text), string(got))
}

// Concurrent callers get the same block, which is counted once.
func TestAMessageIsDeflatedOnce(t *testing.T) {
	var account memory.Account
	for range 50 {
		f := textFrame(chatter(2000), &account)
		first := make([]*byte, 8)
		var start, done sync.WaitGroup
		start.Add(1)
		for i := range first {
			done.Go(func() {
				start.Wait()
				block, _ := f.Deflated(NDJSON, 1)
				first[i] = unsafe.SliceData(block)
			})
		}
		start.Done()
		done.Wait()
		block, pays := f.Deflated(NDJSON, 1)
		require.True(t, pays)
		for _, p := range first {
			require.Same(t, unsafe.SliceData(block), p)
		}
		wantBlock(t, f.Bytes(NDJSON), block)
		require.Less(t, len(block), 1000)
		require.Equal(t, int64(len(f.Bytes(NDJSON))+len(block)), account.Of(memory.Encodings))
		f.Release()
		require.Zero(t, account.Of(memory.Encodings))
	}
}

// One caller makes the block. The others wait for it.
func TestConcurrentCallersWaitForOneBlock(t *testing.T) {
	f := textFrame(chatter(2000), nil)
	for range cap(compressing) {
		compressing <- struct{}{} // nobody can make anything
	}
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() { f.Deflated(NDJSON, 1) })
	}
	oneMakesIt := false
	for deadline := time.Now().Add(30 * time.Second); !oneMakesIt && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if oneMakesIt = !f.deflating.TryLock(); !oneMakesIt {
			f.deflating.Unlock()
		}
	}
	for range cap(compressing) {
		<-compressing
	}
	asking.Wait()
	require.True(t, oneMakesIt)
	_, pays := f.Deflated(NDJSON, 1)
	require.True(t, pays)
}

func TestShortMessagesAreNotDeflated(t *testing.T) {
	f := textFrame(chatter(1000), nil)
	length := len(f.Bytes(NDJSON))
	for least, want := range map[int]bool{length + 1: false, length: true, 0: true, -1: false} {
		_, pays := f.Deflated(NDJSON, least)
		require.Equal(t, want, pays, "%d bytes, and at least %d", length, least)
	}
	_, pays := NewGap(*someGap()).Deflated(NDJSON, 0)
	require.False(t, pays, "a gap is short")
}

// If deflating does not pay, the frame remembers that.
func TestDeflatingIsTriedOnce(t *testing.T) {
	var account memory.Account
	f := textFrame(noise(2000), &account)
	_, pays := f.Deflated(NDJSON, 1)
	require.True(t, pays, "printable text is seven bits a byte")

	f = New(&wire.Message{Position: someTopic, Type: "image/png", Data: []byte("short")}, time.Time{}, 0, &account)
	_, pays = f.Deflated(NDJSON, 1)
	require.False(t, pays)
	tried, made := f.find(form{format: NDJSON, deflated: true})
	require.True(t, made)
	require.Nil(t, tried)
	require.Zero(t, testing.AllocsPerRun(100, func() { f.Deflated(NDJSON, 1) }))
	f.Forget()
	_, made = f.find(form{format: NDJSON, deflated: true})
	require.False(t, made, "it takes memory, too")
}

// Deflating pays if it saves a tenth, to the byte.
func TestATenthPays(t *testing.T) {
	for n := range 400 {
		text := []byte(noise(200) + strings.Repeat("a", n))
		c := compressors.New().(*compressor)
		block := bytes.Clone(c.compress(text))
		pays := 10*len(block) <= 9*len(text)+9
		require.Equal(t, pays, deflated(text) != nil, "%d of %d bytes", len(block), len(text))
	}
}

func TestADeflatedMessageAllocatesNothingPerDelivery(t *testing.T) {
	f := textFrame(chatter(2000), nil)
	f.Deflated(NDJSON, 1)
	require.Zero(t, testing.AllocsPerRun(100, func() { f.Deflated(NDJSON, 1) }))
}

// A block does not depend on the previous message.
func FuzzDeflated(f *testing.F) {
	f.Add("", "a")
	f.Add(chatter(100), chatter(100))
	f.Add(noise(70_000), chatter(70_000))
	f.Fuzz(func(t *testing.T, before, text string) {
		deflated([]byte(before))
		alone := compressors.New().(*compressor).compress([]byte(text))
		wantBlock(t, []byte(text), alone)
		if block := deflated([]byte(text)); block != nil {
			require.Equal(t, string(alone), string(block))
		}
	})
}

func BenchmarkDeflated(b *testing.B) {
	for _, size := range []int{1 << 10, 4 << 10, 20 << 10} {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			line := textFrame(chatter(size), nil).Bytes(NDJSON)
			left := 0
			b.ReportAllocs()
			for b.Loop() {
				left = len(deflated(line))
			}
			b.ReportMetric(float64(left)/float64(len(line)), "ratio")
		})
	}
}
