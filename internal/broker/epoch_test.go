package broker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEpochsOfTheSameMillisecondDiffer(t *testing.T) {
	now := time.Now()
	first, later := newEpoch(now), newEpoch(now.Add(time.Millisecond))
	require.Less(t, first, later, "epochs sort by time")
	require.Regexp(t, `^[0-9a-z]{12}$`, first)
	for range 3 { // two may be equal by chance
		if newEpoch(now) != first {
			return
		}
	}
	require.Fail(t, "all have the same epoch")
}
