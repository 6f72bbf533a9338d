package throttle

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Calls that were under way at the end of a run are completed after it, and are more
// than fit into it.
func TestProgressNeverHasMoreCallsThanThereMayBe(t *testing.T) {
	cfg := Default()
	trial := trial{cfg: &cfg, setting: Setting{100, 16}}
	within := 16 * 11
	for _, done := range []int{0, within - 1, within, within + 16} {
		trial.completed.Store(int64(done))
		s := trial.status()
		require.Equal(t, done, s.Done)
		require.EqualValues(t, done, s.Deliveries)
		require.Equal(t, max(done, within), s.Total)
	}
}
