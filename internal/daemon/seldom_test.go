package daemon

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatHappensOftenIsLoggedSeldom(t *testing.T) {
	var s seldom
	begin := time.Now()
	for _, is := range []struct {
		after time.Duration
		due   bool
	}{{0, true}, {1, false}, {warnEvery - 1, false}, {warnEvery, true}, {warnEvery + 1, false}, {2 * warnEvery, true}} {
		require.Equal(t, is.due, s.due(begin.Add(is.after)), is.after)
	}
}
