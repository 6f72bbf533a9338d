package transports

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// things counts things of one size.
func things(size int, had *int) func([]byte) (int, error) {
	return func(b []byte) (int, error) {
		switch {
		case len(b) == 0:
			return 0, errors.New("asked about nothing")
		case len(b) < size:
			return 0, nil
		}
		*had++
		return size, nil
	}
}

// Large pieces whose ends are within a thing: little is carried, and nothing is
// allocated for the rest.
func TestLittleIsCarried(t *testing.T) {
	const thing = 300
	piece := make([]byte, 100_003)
	for i := range piece {
		piece[i] = 'x'
	}
	var c carry
	had := 0
	take := things(thing, &had)
	for range thing {
		require.NoError(t, c.feed(piece, take))
	}
	require.Equal(t, len(piece), had)
	require.Empty(t, c)
	require.LessOrEqual(t, cap(c), 2*(thing+carryStep))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = c.feed(piece, take) }))
}

// What the step does not hold is carried on, up to a bound.
func TestAThingOfManySteps(t *testing.T) {
	var c carry
	taken := 0
	take := things(10*carryStep, &taken)
	whole := bytes.Repeat([]byte("y"), 30*carryStep)
	for from := 0; from < len(whole); from += 1000 {
		require.NoError(t, c.feed(whole[from:min(from+1000, len(whole))], take))
	}
	require.Equal(t, 3, taken)
	fault := errors.New("no")
	require.ErrorIs(t, c.feed(whole, func([]byte) (int, error) { return 0, fault }), fault)
}
