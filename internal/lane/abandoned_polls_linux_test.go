package lane_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// A client abandons a poll and polls again on another connection at once. The daemon may
// read the two polls in either order. The new poll always gets the message.
func TestAPollReplacesAnAbandonedOne(t *testing.T) {
	for _, way := range []lane.Way{lane.Off, lane.HandOff, lane.Channel} {
		t.Run(string(way)+" new connections", func(t *testing.T) {
			newLaneKit(t, way).abandonPolls((*kit).Call)
		})
		if way != lane.Off {
			t.Run(string(way)+" kept connections", func(t *testing.T) {
				newLaneKit(t, way).abandonPolls((*kit).CallOnLane)
			})
		}
	}
}

func (k *kit) abandonPolls(call func(*kit) *lanetest.Caller) {
	session := k.OpenA()
	ended := func() int { return int(k.Counted("pubsubd_polls_total")) }
	for n := 1; n <= 20; n++ {
		abandoned, current := call(k), call(k)
		abandoned.Send(lanetest.Polling(session, n-1))
		require.NoError(k, abandoned.Conn.Close())
		current.Send(lanetest.Polling(session, n-1))
		k.Want(2*n-1, ended, "polls that are over: one was abandoned")
		k.WantParked(1)
		k.Tell(n, n, 10)
		current.WantMessages(n, n)
		require.NoError(k, current.Conn.Close())
		k.WantOnLane(0)
	}
}
