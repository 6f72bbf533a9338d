package memory

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestPressureRisesInStepsAndEndsBelowThem(t *testing.T) {
	s := steps{calm: 4, high: 8, critical: 12}
	for _, tt := range []struct {
		after Pressure
		taken int64
		want  Pressure
	}{
		{Calm, 0, Calm}, {Calm, 79, Calm}, {Calm, 80, High}, {Calm, 120, Critical},
		{High, 119, High}, {High, 40, High}, {High, 39, Calm}, {High, 120, Critical},
		{Critical, 119, Critical}, {Critical, 40, Critical}, {Critical, 39, Calm}, {Critical, 500, Critical},
	} {
		require.Equal(t, tt.want, s.next(tt.after, tt.taken, 160), "%v %d", tt.after, tt.taken)
	}
	require.Equal(t, "none high critical", Calm.String()+" "+High.String()+" "+Critical.String())
}

// Histories that fill the budget are evicted. Memory that clients hold is not.
func TestOnlyMemoryOfClientsRaisesThePressure(t *testing.T) {
	h := newFake(160 << 10)
	a := h.account
	for range 300 {
		require.NoError(t, h.publish())
	}
	require.Equal(t, Calm, a.Pressure())
	held, budget := a.Held()
	require.EqualValues(t, 160<<10, budget)
	require.Less(t, held, budget/100)

	a.Add(Queues, 101<<10)
	require.Equal(t, High, a.Pressure(), "without a look of the watcher")
	require.False(t, a.Tight())
	require.NoError(t, h.publish())
	require.Empty(t, a.pressed)
	a.Add(Queues, 20<<10)
	require.NoError(t, h.publish(), "the budget is not full")
	require.True(t, a.Tight(), "a publish notices it")
	require.NoError(t, h.publish())
	require.Len(t, a.pressed, 1, "woken once")
	require.LessOrEqual(t, a.Used(), budget)

	a.Add(Queues, -121<<10)
	require.True(t, a.Tight(), "until the watcher looks")
	a.Press(Calm)
	require.Equal(t, Calm, a.Pressure())
}

func TestEveryKindThatClientsHoldRaisesThePressure(t *testing.T) {
	a := newFake(160 << 10).account
	for _, k := range []Kind{Queued, Queues, Topics, Unfinished, Unread} {
		a.Add(k, 110<<10)
		require.Equal(t, High, a.Pressure(), k)
		if k != Queued { // these bytes count as Pinned or History
			require.EqualValues(t, 110<<10, a.Used(), k)
		}
		a.Add(k, -110<<10)
	}
}

func TestHistoriesShrinkAndGrowAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 160 << 10
		h := newFake(budget)
		a := h.account
		publish := func(n int) {
			for range n {
				time.Sleep(time.Millisecond)
				require.NoError(t, h.publish())
			}
		}
		publish(100)
		before := a.Used()
		a.Shrink(40 << 10)
		require.LessOrEqual(t, a.Used(), before-40<<10)
		publish(100)
		require.LessOrEqual(t, a.Used(), before-40<<10, "new messages fit the rest")

		a.Shrink(1 << 30)
		require.LessOrEqual(t, a.Used(), int64(budget/spare))
		publish(20)
		require.NotEmpty(t, h.messages, "a part stays for messages")

		used := a.Used()
		a.Regrow()
		publish(100)
		require.Greater(t, a.Used(), used)
		require.Less(t, a.Used(), int64(budget/spare+2*budget/grown))
		for range grown {
			a.Regrow()
		}
		require.Zero(t, a.shrunk.Load())
		publish(140)
		require.Greater(t, a.Used(), int64(budget-2*budget/Slack))
	})
}

func TestTheDefaultBudgetIsHalfOfTheLimit(t *testing.T) {
	for limit, want := range map[int64]int64{math.MaxInt64: 512 << 20, 1 << 30: 512 << 20, 800 << 20: 400 << 20} {
		require.Equal(t, want, Budget(0, limit))
	}
	require.EqualValues(t, 700<<20, Budget(700<<20, 800<<20))

	core, logged := observer.New(zapcore.InfoLevel)
	log := zap.New(core)
	LogBudget(log, 700<<20, 800<<20)
	require.Equal(t, zapcore.WarnLevel, logged.TakeAll()[0].Level)
	LogBudget(log, 0, 800<<20)
	require.Equal(t, map[string]any{"budget": int64(400 << 20), "memory_limit": int64(800 << 20)}, logged.TakeAll()[0].ContextMap())
	LogBudget(log, 700<<20, math.MaxInt64)
	LogBudget(log, 0, 1<<30)
	require.Empty(t, logged.TakeAll())
}

// Go allows a limit of 0. The watcher must not divide by it.
func TestALimitOfZeroIsAllowed(t *testing.T) {
	was := debug.SetMemoryLimit(0)
	defer debug.SetMemoryLimit(was)
	require.Positive(t, newProcessReader()().limit)
}

// Messages in queues count with their history, or as pinned. Clients hold what no eviction frees.
func TestWhatIsUsedAndWhatClientsHold(t *testing.T) {
	a := New(1<<20, nil, nil)
	for k := range kinds {
		a.Add(k, 1<<k)
	}
	require.EqualValues(t, 1<<kinds-1-1<<Queued, a.Used())
	held, budget := a.Held()
	require.EqualValues(t, 1<<Queued+1<<Queues+1<<Topics+1<<Unfinished+1<<Unread, held)
	require.EqualValues(t, 1<<20, budget)
}
