package exhaustive

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASampleIsTriedUnlessTheEnvironmentAsksForAll(t *testing.T) {
	t.Setenv("EXHAUSTIVE", "")
	t.Setenv("CI", "")
	require.Equal(t, 7, Step(7))
	t.Setenv("CI", "true")
	require.Equal(t, 1, Step(7))
	t.Setenv("CI", "")
	t.Setenv("EXHAUSTIVE", "1")
	require.Equal(t, 1, Step(7))
}
