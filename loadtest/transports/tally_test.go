package transports

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATallyAccountsForEveryMessage(t *testing.T) {
	tally := newTally(7, 200)
	take := func(offset uint64, sequence int) {
		require.NoError(t, tally.message(seen{offset: offset, sequence: sequence}))
	}
	for i := range 198 {
		take(uint64(8+i), i)
	}
	take(207, 199) // the one before is missing
	take(207, 199)
	take(8, 0)
	require.False(t, tally.complete())
	require.Equal(t, int64(1), tally.lost())
	take(206, 198)
	require.True(t, tally.complete())
	require.Equal(t, uint64(202), tally.frames)
	require.Equal(t, int64(2), tally.duplicates)
	require.Equal(t, int64(1), tally.disordered)
}

func TestMessagesThatWereNotPublished(t *testing.T) {
	for _, m := range []seen{{offset: 7}, {offset: 0}, {offset: 18}, {offset: 9, sequence: 10}} {
		require.ErrorContains(t, newTally(7, 10).message(m), "not published in this test", "%v", m)
	}
	tally := newTally(7, 10)
	require.NoError(t, tally.message(seen{offset: 8, sequence: 3}))
	require.ErrorContains(t, tally.message(seen{offset: 9, sequence: 3}), "arrived again")
}
