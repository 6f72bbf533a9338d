package memory

import (
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// A crowd connects and waits. Its garbage goes back once the heap has been quiet for a second, and
// what the next crowd leaves 30 seconds later.
func TestAQuietHeapReturnsItsWaste(t *testing.T) {
	const mib = 1 << 20
	short(t, func(p *shortProcess) {
		heap, returned := heapMemory{objects: 4 * mib, marked: 2 * mib}, 0
		p.process = func() processMemory { return processMemory{limit: math.MaxInt64, heap: heap} }
		p.giveBack = func() {
			returned++
			heap.objects, heap.free = heap.objects*2/3, 0
			heap.marked = heap.objects
		}
		wants := func(total int, seconds int) {
			t.Helper()
			for range seconds {
				p.looks(Calm)
			}
			require.Equal(t, total, returned)
		}
		wants(0, 100) // a small heap
		for range 10 {
			heap.objects += 20 * mib
			wants(0, 1) // it grows
		}
		wants(1, 1) // it waits
		wants(1, 100)
		for range 60 {
			heap.objects += 2 * mib
			wants(1, 1) // messages: the collector works
		}
		heap.objects -= 10 * mib
		wants(1, 1) // it does
		wants(2, 1)
		heap.objects += 100 * mib
		wants(2, 29)
		wants(3, 2)
		heap.free = heap.marked/wasteShare - 1
		wants(3, 100)
		heap.free++
		wants(4, 1)
	})
}

// The heap has what is allocated, what was kept, and what can be returned.
func TestTheHeapOfTheProcessIsRead(t *testing.T) {
	const many = 32 << 20
	process := newProcessReader()
	runtime.GC()
	before := process().heap
	kept := make([]byte, many)
	require.InDelta(t, before.objects+many, process().heap.objects, many/8)
	runtime.GC()
	require.InDelta(t, before.marked+many, process().heap.marked, many/8)
	runtime.KeepAlive(kept)
	NewWatcher(newFake(1<<20).account, nil, zap.NewNop()).giveBack()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	after := process().heap
	require.InDelta(t, before.objects, after.objects, many/8, "it collects")
	require.InDelta(t, m.HeapIdle-m.HeapReleased, after.free, many/8)
	require.Less(t, after.free, int64(many/2), "it returns pages")
}
