package httpapi

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Looking for a pattern's topics may take long, and a reader of the lane has other
// connections to tend: such a poll goes to net/http, and the connection comes back.
func TestTheLaneDoesNotLookForTopics(t *testing.T) {
	onBothWays(t, func(t *testing.T, way LaneWay) {
		k := newLaneKit(t, way)
		c := k.callOnLane()
		read := func(by string) int { return int(k.counted("pubsubd_calls_total", "poll", by)) }
		c.send("GET /v1/poll?topic=lane.*@oldest HTTP/1.1\r\nHost: h\r\n\r\n")
		require.Contains(t, c.wantAnswer(http.StatusOK), `"position":"lane.taken@`)
		require.Equal(t, []int{0, 1}, []int{read("lane"), read("net/http")})
		c.send("GET /v1/poll?topic=lane.taken@oldest HTTP/1.1\r\nHost: h\r\n\r\n")
		c.wantAnswer(http.StatusOK)
		require.Equal(t, []int{1, 1}, []int{read("lane"), read("net/http")})
	})
}
