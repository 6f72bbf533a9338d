package broker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Someone who comes back with many patterns does not have each held against all that
// was forgotten: beyond a bound, something may have been lost.
func TestHowOftenWhatWasForgottenIsLookedAtIsBounded(t *testing.T) {
	var f forgotten
	for range forgottenRemembered {
		f.add("other.topic", 1)
	}
	s := NewSearch(1)
	for range recallsOfAll {
		require.False(t, f.since("a.*", 0, nil, s))
	}
	require.True(t, f.since("a.*", 0, nil, s), "it has looked at as many as it may")
	require.False(t, f.since("a.*", f.total(), nil, s), "nothing was forgotten since")
	require.False(t, f.since("a.*", 0, nil, NewSearch(1)), "another caller has a search of its own")
}
