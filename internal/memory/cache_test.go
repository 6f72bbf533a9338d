package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is remembered is bounded, and what is in use stays.
func TestTheCacheIsBounded(t *testing.T) {
	const each = 8 << 10
	c := Cache[int, string]{Most: 1 << 20}
	const used = -1
	c.Put(used, "used", 100)
	for i := range 10 * c.Most / each {
		c.Put(i, "", each)
		_, ok := c.Get(used)
		require.True(t, ok)
		require.LessOrEqual(t, c.size, c.Most)
	}
	values, size := c.Held()
	require.LessOrEqual(t, values, 2*c.Most/each+1)
	require.LessOrEqual(t, size, 2*c.Most)
	_, ok := c.Get(0)
	require.False(t, ok)
	c.Put(used, "used", 100)
	require.LessOrEqual(t, c.size, c.Most)
	sum := 0
	for _, generation := range []map[int]cached[string]{c.young, c.old} {
		for _, entry := range generation {
			sum += entry.size
		}
	}
	_, size = c.Held()
	require.Equal(t, sum, size)
}
