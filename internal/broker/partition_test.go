package broker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A client resumes many patterns. Only some of them are compared with all forgotten
// topics. The others may have lost something.
func TestComparisonsWithForgottenTopicsAreBounded(t *testing.T) {
	var f forgotten
	for range forgottenRemembered {
		f.add("other.topic", 1)
	}
	s := NewSearch(1)
	for range recallsOfAll {
		require.False(t, f.since("a.*", 0, nil, s))
	}
	require.True(t, f.since("a.*", 0, nil, s), "the search has reached its bound")
	require.False(t, f.since("a.*", f.total(), nil, s), "nothing was forgotten since")
	require.False(t, f.since("a.*", 0, nil, NewSearch(1)), "a new search has its own bound")
}
