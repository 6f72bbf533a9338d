package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAPressureRisesInStepsAndEndsBelowThem(t *testing.T) {
	steps := Steps{Calm: 4, High: 8, Critical: 12}
	for _, tt := range []struct {
		after Pressure
		taken int64
		want  Pressure
	}{
		{Calm, 0, Calm}, {Calm, 79, Calm}, {Calm, 80, High}, {Calm, 120, Critical},
		{High, 119, High}, {High, 40, High}, {High, 39, Calm}, {High, 120, Critical},
		{Critical, 119, Critical}, {Critical, 40, Critical}, {Critical, 39, Calm}, {Critical, 500, Critical},
	} {
		require.Equal(t, tt.want, steps.Next(tt.after, tt.taken, 160), "%v %d", tt.after, tt.taken)
	}
	require.Equal(t, "none high critical", Calm.String()+" "+High.String()+" "+Critical.String())
}

// Histories that fill the budget make room. What queues alone hold does not.
func TestOnlyWhatClientsHoldPresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{MemoryBudget: 160 << 10}, metrics.New("test"), time.Now())
		for range 300 {
			require.NoError(t, publishSized(t, b, "a", 1000))
		}
		require.Equal(t, Calm, b.Pressure())
		held, budget := b.Held()
		require.EqualValues(t, 160<<10, budget)
		require.Less(t, held, budget/100)

		b.CountQueues(101 << 10)
		require.Equal(t, High, b.Pressure(), "found without anyone who looks")
		require.False(t, b.Tight())
		require.NoError(t, publishSized(t, b, "a", 1000))
		require.Empty(t, b.Pressed())
		b.CountQueues(20 << 10)
		require.NoError(t, publishSized(t, b, "a", 1000), "there is room yet")
		require.True(t, b.Tight(), "a publish finds it")
		require.NoError(t, publishSized(t, b, "a", 1000))
		require.Len(t, b.Pressed(), 1, "told once")
		require.LessOrEqual(t, b.used(), budget)

		b.CountQueues(-121 << 10)
		require.True(t, b.Tight(), "until it is looked at")
		b.Press(Calm)
		require.Equal(t, Calm, b.Pressure())
	})
}

func TestHistoriesShrinkAndGrowAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 160 << 10
		b := New(Config{MemoryBudget: budget}, metrics.New("test"), time.Now())
		publish := func(n int) {
			for range n {
				time.Sleep(time.Millisecond)
				require.NoError(t, publishSized(t, b, "a", 1000))
			}
		}
		publish(100)
		before := b.used()
		require.GreaterOrEqual(t, b.Shrink(40<<10), int64(40<<10))
		publish(100)
		require.LessOrEqual(t, b.used(), before-40<<10, "what is published makes do with the rest")
		held, why := holds(b, "a")
		require.EqualValues(t, 200, held[len(held)-1], "the oldest went")
		require.Equal(t, wire.GapEvicted, why)

		b.Shrink(1 << 30)
		require.LessOrEqual(t, b.used(), int64(budget/spare))
		publish(20)
		held, _ = holds(b, "a")
		require.NotEmpty(t, held, "a part is always for messages")

		used := b.used()
		b.Regrow()
		publish(100)
		require.Greater(t, b.used(), used)
		require.Less(t, b.used(), int64(budget/spare+2*budget/grown))
		for range grown {
			b.Regrow()
		}
		require.Zero(t, b.memory.shrunk.Load())
		publish(140)
		require.Greater(t, b.used(), int64(budget-2*budget/slack))
	})
}
