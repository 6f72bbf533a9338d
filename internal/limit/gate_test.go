package limit

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func newGate(slots, queue int, wait time.Duration) *Gate {
	return NewGate("calls", "limits.calls", slots, queue, wait, metrics.New("test"))
}

var overloaded = &wire.Problem{Code: wire.CodeOverloaded}

func TestCallersEnterInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 10, time.Minute)
		require.NoError(t, g.Enter(t.Context(), nil))
		var mu sync.Mutex
		var order []int
		for i := range 5 {
			go func() {
				if g.Enter(t.Context(), nil) == nil {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
				}
			}()
			synctest.Wait()
		}
		require.Equal(t, metrics.Limit{Name: "calls", Most: 1, InUse: 1, Waiting: 5}, g.Gauge())
		for range 6 {
			g.Leave()
			synctest.Wait()
		}
		require.Equal(t, []int{0, 1, 2, 3, 4}, order)
		require.Zero(t, g.Gauge().InUse)
	})
}

func TestNoCallerOvertakesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 10, time.Minute)
		require.NoError(t, g.Enter(t.Context(), nil))
		go func() { _ = g.Enter(t.Context(), nil) }()
		synctest.Wait()
		done, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, g.Enter(done, nil), context.Canceled, "the queue comes first")
		g.Leave()
		synctest.Wait()
		require.Equal(t, 1, g.Gauge().InUse)
		g.Leave()
	})
}

func TestACallerWithoutASlotIsRefusedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 1, 3*time.Second)
		require.NoError(t, g.Enter(t.Context(), nil))
		begun := time.Now()
		waiting := make(chan error, 1)
		go func() { waiting <- g.Enter(t.Context(), nil) }()
		synctest.Wait()
		require.ErrorIs(t, g.Enter(t.Context(), nil), overloaded, "the queue is full")
		require.Zero(t, time.Since(begun))
		require.ErrorIs(t, <-waiting, overloaded)
		require.Equal(t, 3*time.Second, time.Since(begun))
		require.Equal(t, metrics.Limit{Name: "calls", Most: 1, InUse: 1}, g.Gauge())
		g.Leave()
		require.NoError(t, g.Enter(t.Context(), nil), "the refused callers took no slot")
	})
}

func TestACallerThatLeavesTheQueueTakesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 5, time.Minute)
		require.NoError(t, g.Enter(t.Context(), nil))
		ctx, leave := context.WithCancel(t.Context())
		waiting := make(chan error, 1)
		go func() { waiting <- g.Enter(ctx, nil) }()
		synctest.Wait()
		leave()
		require.ErrorIs(t, <-waiting, context.Canceled)
		g.Leave()
		require.Zero(t, g.Gauge().InUse)
	})
}

func TestMoreSlotsAdmitTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 5, time.Minute)
		require.NoError(t, g.Enter(t.Context(), nil))
		waiting := make(chan error, 3)
		for range 3 {
			go func() { waiting <- g.Enter(t.Context(), nil) }()
		}
		synctest.Wait()
		g.Set(3, 5, time.Second)
		require.NoError(t, <-waiting)
		require.NoError(t, <-waiting)
		require.Equal(t, metrics.Limit{Name: "calls", Most: 3, InUse: 3, Waiting: 1}, g.Gauge())
		g.Set(1, 5, time.Second)
		g.Leave()
		g.Leave()
		synctest.Wait()
		require.Equal(t, 1, g.Gauge().Waiting, "all slots are still in use")
		g.Leave()
		require.NoError(t, <-waiting)
	})
}

// A slot becomes free just as a wait ends. The caller takes it, or the next one does.
func TestNoSlotIsLostAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(3, 100, 10*time.Millisecond)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				time.Sleep(time.Duration(i%7) * time.Millisecond)
				if g.Enter(t.Context(), nil) == nil {
					time.Sleep(5 * time.Millisecond)
					g.Leave()
				}
			})
		}
		all.Wait()
		require.Equal(t, metrics.Limit{Name: "calls", Most: 3}, g.Gauge())
	})
}

// enterAs has n callers of an address queue, one after the other. Each notes its name when it
// has a slot, or the name with "!" when it is refused.
func enterAs(t *testing.T, g *Gate, of *memory.Client, name string, n int, note func(string)) {
	for range n {
		go func() {
			if g.Enter(t.Context(), of) != nil {
				note(name + "!")
				return
			}
			note(name)
		}()
		synctest.Wait()
	}
}

// An address may use every slot while nobody else waits. Then addresses get slots in turn.
func TestAddressesGetSlotsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(2, 100, time.Minute)
		many, few, one := new(memory.Client), new(memory.Client), new(memory.Client)
		var order []string
		note := func(name string) { order = append(order, name) }
		enterAs(t, g, many, "many", 6, note)
		require.Equal(t, []string{"many", "many"}, order)
		enterAs(t, g, few, "few", 2, note)
		enterAs(t, g, one, "one", 1, note)
		require.Equal(t, 7, g.Gauge().Waiting)
		for range 7 {
			g.Leave()
			synctest.Wait()
		}
		require.Equal(t, []string{"many", "few", "one", "many", "few", "many", "many"}, order[2:])
		g.Leave()
		g.Leave()
		require.Empty(t, g.lines)
		require.Zero(t, g.turns.Len()+g.Gauge().InUse)
	})
}

// One address cannot fill the queue for others.
func TestAFullQueueHasPlaceForOtherAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 4, time.Minute)
		many, few := new(memory.Client), new(memory.Client)
		require.NoError(t, g.Enter(t.Context(), nil))
		var order []string
		note := func(name string) { order = append(order, name) }
		enterAs(t, g, many, "many", 5, note)
		require.Equal(t, []string{"many!"}, order)

		mustNotWait, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, g.Enter(mustNotWait, few), context.Canceled, "it displaces nobody")
		require.Equal(t, []string{"many!"}, order)

		enterAs(t, g, few, "few", 3, note)
		require.Equal(t, []string{"many!", "many!", "many!", "few!"}, order)
		require.Equal(t, 4, g.Gauge().Waiting)
		order = nil
		for range 4 {
			g.Leave()
			synctest.Wait()
		}
		require.Equal(t, []string{"many", "few", "many", "few"}, order)
	})
}

// However callers come and leave, the gate knows which line is the longest.
func TestTheLongestLineIsFirst(t *testing.T) {
	g := newGate(0, 1000, time.Minute)
	addresses := make([]memory.Client, 20)
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		of := &addresses[random.IntN(len(addresses))]
		l := g.lines[of]
		if l == nil || random.IntN(2) == 0 {
			g.joinLocked(of, make(chan error, 1))
		} else {
			g.removeLocked(l, l.callers.Front())
		}
		require.Len(t, g.ranks, len(g.lines))
		for i, l := range g.ranks {
			require.Equal(t, i, l.rank)
			require.Same(t, l, g.lines[l.of])
			require.Positive(t, l.callers.Len())
			require.True(t, i == 0 || l.callers.Len() <= g.ranks[i-1].callers.Len())
		}
	}
}

// A caller that must not wait finds a full queue.
func BenchmarkEnterAtAFullQueue(b *testing.B) {
	const addresses = 10_000
	g := newGate(0, addresses, time.Minute)
	for range addresses {
		g.joinLocked(new(memory.Client), make(chan error, 1))
	}
	ctx, of := b.Context(), new(memory.Client)
	for b.Loop() {
		_ = g.Enter(ctx, of)
	}
}
