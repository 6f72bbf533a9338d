package httpapi

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
)

// Matching a pattern against all topics may take long and would block the event loop.
// Another goroutine opens such a poll. The connection stays on the lane.
func TestTheLaneMatchesPatternsInAnotherGoroutine(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		c := k.callOnLane()
		c.send("GET /v1/poll?topic=lane.*@oldest HTTP/1.1\r\nHost: h\r\n\r\n", "GET /v1/poll?topic=lane.taken@oldest HTTP/1.1\r\nHost: h\r\n\r\n")
		require.Contains(t, c.wantAnswer(http.StatusOK), `"position":"lane.taken@`)
		c.wantAnswer(http.StatusOK)
		require.Equal(t, 2.0, k.counted("pubsubd_calls_total", "poll", "lane"))
		require.Zero(t, k.counted("pubsubd_calls_total", "poll", "net/http"))
		require.Zero(t, k.counted("pubsubd_lane_returned_total"))
	})
}
