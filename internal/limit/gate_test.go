package limit

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
		require.NoError(t, g.Enter(t.Context()))
		var mu sync.Mutex
		var order []int
		for i := range 5 {
			go func() {
				if g.Enter(t.Context()) == nil {
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
		require.NoError(t, g.Enter(t.Context()))
		go func() { _ = g.Enter(t.Context()) }()
		synctest.Wait()
		done, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, g.Enter(done), context.Canceled, "the queue comes first")
		g.Leave()
		synctest.Wait()
		require.Equal(t, 1, g.Gauge().InUse)
		g.Leave()
	})
}

func TestACallerWithoutASlotIsRefusedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 1, 3*time.Second)
		require.NoError(t, g.Enter(t.Context()))
		begun := time.Now()
		waiting := make(chan error, 1)
		go func() { waiting <- g.Enter(t.Context()) }()
		synctest.Wait()
		require.ErrorIs(t, g.Enter(t.Context()), overloaded, "the queue is full")
		require.Zero(t, time.Since(begun))
		require.ErrorIs(t, <-waiting, overloaded)
		require.Equal(t, 3*time.Second, time.Since(begun))
		require.Equal(t, metrics.Limit{Name: "calls", Most: 1, InUse: 1}, g.Gauge())
		g.Leave()
		require.NoError(t, g.Enter(t.Context()), "the refused callers took no slot")
	})
}

func TestACallerThatLeavesTheQueueTakesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 5, time.Minute)
		require.NoError(t, g.Enter(t.Context()))
		ctx, leave := context.WithCancel(t.Context())
		waiting := make(chan error, 1)
		go func() { waiting <- g.Enter(ctx) }()
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
		require.NoError(t, g.Enter(t.Context()))
		waiting := make(chan error, 3)
		for range 3 {
			go func() { waiting <- g.Enter(t.Context()) }()
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
				if g.Enter(t.Context()) == nil {
					time.Sleep(5 * time.Millisecond)
					g.Leave()
				}
			})
		}
		all.Wait()
		require.Equal(t, metrics.Limit{Name: "calls", Most: 3}, g.Gauge())
	})
}
