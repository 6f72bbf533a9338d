package lane_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// Matching a pattern against all topics may take long and would block the event loop.
// Another goroutine opens such a poll. The connection stays on the lane.
func TestTheLaneMatchesPatternsInAnotherGoroutine(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		k.Publish("lane.taken", "0")
		c := k.CallOnLane()
		c.Send("GET /v1/poll?topic=lane.*@oldest HTTP/1.1\r\nHost: h\r\n\r\n", "GET /v1/poll?topic=lane.taken@oldest HTTP/1.1\r\nHost: h\r\n\r\n")
		require.Contains(t, c.WantAnswer(http.StatusOK), `"position":"lane.taken@`)
		c.WantAnswer(http.StatusOK)
		require.Equal(t, 2.0, k.Counted("pubsubd_calls_total", "poll", "lane"))
		require.Zero(t, k.Counted("pubsubd_calls_total", "poll", "net/http"))
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
	})
}
