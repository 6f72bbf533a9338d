package exhaustive

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASampleIsTriedUnlessTheEnvironmentAsksForAll(t *testing.T) {
	t.Setenv("EXHAUSTIVE", "")
	t.Setenv("CI", "")
	require.False(t, On())
	require.Equal(t, 7, Step(7))
	t.Setenv("CI", "true")
	require.True(t, On())
	require.Equal(t, 1, Step(7))
	t.Setenv("CI", "")
	t.Setenv("EXHAUSTIVE", "1")
	require.Equal(t, 1, Step(7))
	t.Setenv("EXHAUSTIVE", "5")
	require.True(t, On())
	require.Equal(t, 5, Step(7), "every fifth case")
	require.Equal(t, 3, Step(3), "not fewer than in the small sample")
}
