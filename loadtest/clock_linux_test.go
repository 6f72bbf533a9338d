package loadtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two processes of one machine read one clock, however slowly they talk; unless
// what it says is impossible, as in another time namespace.
func TestProcessesOfOneMachineShareAClock(t *testing.T) {
	began := time.Now()
	ours := func() time.Duration { return time.Since(began) }
	const ahead = 42 * time.Second
	theirs := func() time.Duration { return ours() + ahead }
	c, err := compareClocks(ours, func() (clockReading, error) { return readClock(theirs), nil })
	require.NoError(t, err)
	require.True(t, c.shared)
	require.InDelta(t, ahead, c.ahead, float64(c.uncertainty+time.Microsecond))

	c, err = compareClocks(ours, func() (clockReading, error) {
		r := readClock(theirs)
		r.Monotonic += time.Hour
		return r, nil
	})
	require.NoError(t, err)
	require.False(t, c.shared)
	require.InDelta(t, ahead, c.ahead, float64(c.uncertainty+time.Microsecond))

	c, err = compareClocks(ours, func() (clockReading, error) {
		r := readClock(theirs)
		r.Boot = "another machine"
		return r, nil
	})
	require.NoError(t, err)
	require.False(t, c.shared)
}
