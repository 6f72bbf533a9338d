package daemon

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/pubsubd/pubsubd/internal/config"
)

func TestTheBudgetFitsTheCollectorsLimit(t *testing.T) {
	said := config.Default()
	for limit, want := range map[int64]int{math.MaxInt64: 512 << 20, 1 << 30: 512 << 20, 800 << 20: 400 << 20} {
		require.Equal(t, want, fitted(said, limit).MemoryBudget)
	}
	said.Broker.MemoryBudget = 700 << 20
	require.Equal(t, 700<<20, fitted(said, 800<<20).MemoryBudget)

	d := start(t, nil)
	d.logged.TakeAll()
	d.tellBudget(said, 800<<20)
	require.Equal(t, zapcore.WarnLevel, d.logged.TakeAll()[0].Level)
	d.tellBudget(config.Default(), 800<<20)
	require.Equal(t, map[string]any{"budget": int64(400 << 20), "memory_limit": int64(800 << 20)}, d.logged.TakeAll()[0].ContextMap())
	d.tellBudget(said, math.MaxInt64)
	d.tellBudget(config.Default(), 1<<30)
	require.Empty(t, d.logged.TakeAll())
}

// A limit of zero is one of Go's, and no reason to divide by it.
func TestALimitOfNothingIsALimit(t *testing.T) {
	was := debug.SetMemoryLimit(0)
	defer debug.SetMemoryLimit(was)
	require.Positive(t, newMemoryReader()().limit)
}
