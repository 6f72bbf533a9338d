package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
)

// A client abandons a poll and polls again on another connection at once. The daemon may
// read the two polls in either order. The new poll always gets the message.
func TestAPollReplacesAnAbandonedOne(t *testing.T) {
	for _, way := range []lane.Way{lane.Off, lane.HandOff, lane.Channel} {
		t.Run(string(way)+" new connections", func(t *testing.T) {
			newLaneKit(t, way).abandonPolls((*kit).call)
		})
		if way != lane.Off {
			t.Run(string(way)+" kept connections", func(t *testing.T) {
				newLaneKit(t, way).abandonPolls((*kit).callOnLane)
			})
		}
	}
}

func (k *kit) abandonPolls(call func(*kit) *caller) {
	session := k.openA()
	ended := func() int { return int(k.counted("pubsubd_polls_total")) }
	for n := 1; n <= 20; n++ {
		abandoned, current := call(k), call(k)
		abandoned.send(polling(session, n-1))
		require.NoError(k, abandoned.conn.Close())
		current.send(polling(session, n-1))
		k.want(2*n-1, ended, "polls that are over: one was abandoned")
		k.wantParked(1)
		k.tell(n, n, 10)
		current.wantMessages(n, n)
		require.NoError(k, current.conn.Close())
		k.wantOnLane(0)
	}
}
