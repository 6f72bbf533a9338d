package frame

import (
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/memory"
)

// headsOf returns the heads of n origins in one second.
func headsOf(second int64, n int) []*Head {
	heads := make([]*Head, n)
	for i := range heads {
		heads[i] = &Head{BeforeLength: fmt.Appendf(nil, "%d, %d: ", second, i), AfterLength: []byte(" bytes: "), Second: second}
	}
	return heads
}

func wantWhole(t *testing.T, f *Frame, head *Head) {
	t.Helper()
	line := string(f.Bytes(NDJSON))
	require.Equal(t, string(head.Append(nil, len(line)))+line, string(f.Whole(head)))
}

// sizes returns the bytes that a frame with these heads keeps.
func sizes(f *Frame, heads ...*Head) int64 {
	n := len(f.Bytes(NDJSON))
	for _, head := range heads {
		n += len(f.Whole(head))
	}
	return int64(n)
}

// In a burst to pages of a few origins, each origin has one shared copy, counted once.
func TestAWholeAnswerIsMadeOncePerHead(t *testing.T) {
	var account memory.Account
	f := New(someMessage(), time.Time{}, 0, &account)
	heads := headsOf(1, maxWholes)
	first := make([]*byte, len(heads))
	for i, head := range heads {
		wantWhole(t, f, head)
		first[i] = unsafe.SliceData(f.Whole(head))
	}
	for range 3 {
		for i, head := range heads {
			require.Same(t, first[i], unsafe.SliceData(f.Whole(head)))
		}
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { f.Whole(heads[0]); f.Whole(heads[1]) }))
	require.Equal(t, sizes(f, heads...), account.Of(memory.Encodings))
	f.Release()
	require.Zero(t, account.Of(memory.Encodings))
}

// With more origins the oldest answer is dropped and made again.
func TestTheOldestWholeAnswerIsDropped(t *testing.T) {
	var account memory.Account
	f := New(someMessage(), time.Time{}, 0, &account)
	heads := headsOf(1, maxWholes+1)
	second := unsafe.SliceData(f.Whole(heads[0]))
	for _, head := range heads {
		wantWhole(t, f, head)
		if head == heads[1] {
			second = unsafe.SliceData(f.Whole(head))
		}
	}
	require.Same(t, second, unsafe.SliceData(f.Whole(heads[1])), "it is still there")
	require.Equal(t, sizes(f, heads[1:]...), account.Of(memory.Encodings))
	wantWhole(t, f, heads[0])
	require.NotSame(t, second, unsafe.SliceData(f.Whole(heads[1])), "now it had to go")
}

// A frame that is read for an hour keeps answers of one second only.
func TestANewSecondReplacesAllWholeAnswers(t *testing.T) {
	var account memory.Account
	f := New(someMessage(), time.Time{}, 0, &account)
	for second := range int64(10) {
		heads := headsOf(second, 3)
		for _, head := range heads {
			wantWhole(t, f, head)
		}
		require.Equal(t, sizes(f, heads...), account.Of(memory.Encodings))
	}
}

// Answers are read and made while the history evicts the frame. All callers get the right
// bytes, and nothing remains in the account.
func TestConcurrentWholeAnswers(t *testing.T) {
	var account memory.Account
	f := New(someMessage(), time.Time{}, 0, &account)
	heads := append(headsOf(1, maxWholes+2), headsOf(2, 2)...)
	line := string(f.Bytes(NDJSON))
	var asking sync.WaitGroup
	for i := range 4 {
		asking.Go(func() {
			for n := range 500 {
				head := heads[(n*(i+1)+i)%len(heads)]
				if got := string(f.Whole(head)); got != string(head.Append(nil, len(line)))+line {
					t.Errorf("got %q", got)
				}
			}
		})
	}
	asking.Wait()
	f.Release()
	require.Zero(t, account.Of(memory.Encodings))
}
