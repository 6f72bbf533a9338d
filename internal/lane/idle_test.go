//go:build linux

package lane_test

import (
	"encoding/base64"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// The lane closes a connection that is silent for too long. A connection with a waiting
// poll or stream does not count as silent.
func TestASilentConnectionIsClosedInTime(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		silent := k.CallOnLane()
		poll, stream := k.CallOnLane(), k.Call()
		poll.Send(lanetest.Polling(k.OpenA(), 0))
		stream.Send(lanetest.Polling(k.OpenA(), 0, lanetest.Streaming))
		frames := stream.WantStream()
		k.WantParked(2)

		k.Later(lane.Idle - 5*time.Second)
		require.Equal(t, 3, k.OnLane())
		k.WantOnLaneAfter(lane.Idle, 2)
		silent.WantClosed()

		k.Later(24 * time.Hour)
		k.Tell(1, 1, 10)
		poll.WantMessages(1, 1)
		stream.WantNext(frames, 1, 1)
		require.Equal(t, 2, k.OnLane())
	})
}

// A request restarts the idle timeout of its connection.
func TestAnActiveConnectionIsNotClosed(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		c := k.CallOnLane()
		k.Later(lane.Idle - 5*time.Second)
		c.Send(lanetest.Publishing("b", "1"))
		c.WantPublished("b")
		k.Later(lane.Idle + 10*time.Second)
		c.Send(lanetest.Publishing("b", "2"))
		c.WantPublished("b")
		k.WantOnLane(1)
	})
}

// As TestASilentConnectionIsClosedInTime, for clients that become silent after an
// answered poll.
func TestAnIdleConnectionIsClosedAfterItsPoll(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		poll, stateless := k.Call(), k.Call()
		poll.Send(lanetest.Polling(k.OpenA(), 0))
		stateless.Send("GET /v1/poll?topic=a HTTP/1.1\r\nHost: h\r\n\r\n")
		hello := stateless.WantPosition()
		stateless.Send("GET /v1/poll?topic=" + hello + " HTTP/1.1\r\nHost: h\r\n\r\n")
		k.WantParked(2)
		k.Tell(1, 1, 10)
		poll.WantMessages(1, 1)
		stateless.WantMessages(1, 1)
		k.WantParked(0)
		k.WantOnLaneAfter(lane.Idle, 0)
		poll.WantClosed()
		stateless.WantClosed()
	})
}

// When the rest of a body is late, the lane returns the connection to net/http. There,
// the request waits for its body and publishes once.
func TestAnUnfinishedRequestReturnsToNetHTTP(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		c := k.CallOnLane()
		whole := lanetest.Publishing("b", `"the whole body"`)
		c.Send(lanetest.Publishing("b", "1"), whole[:len(whole)-9])
		require.EqualValues(t, 1, c.WantPublished("b"))
		c.Send(whole[len(whole)-9 : len(whole)-6])
		returned := func() int { return int(k.Counted("pubsubd_lane_returned_total")) }
		require.Zero(t, returned())
		k.Later(5 * time.Second)
		require.Zero(t, returned())
		require.Equal(t, 1, k.OnLane())
		k.WantOnLaneAfter(10*time.Second, 0)
		require.Equal(t, 1, returned())
		byNetHTTP := k.Counted("pubsubd_calls_total", "publish", "net/http")

		c.Send(whole[len(whole)-6:])
		require.EqualValues(t, 2, c.WantPublished("b"))
		require.Equal(t, byNetHTTP+1, k.Counted("pubsubd_calls_total", "publish", "net/http"))
		_, text := k.Get("GET", "/v1/topics/b/messages", "")
		require.Contains(t, text, base64.StdEncoding.EncodeToString([]byte(`"the whole body"`)))

		k.WantOnLane(1) // the lane takes the connection again
		c.Send(lanetest.Publishing("b", "3"))
		require.EqualValues(t, 3, c.WantPublished("b"))
		require.Equal(t, byNetHTTP+1, k.Counted("pubsubd_calls_total", "publish", "net/http"))
	})
}

// A client may leave before or after the lane stops waiting for the rest of its request.
// In both cases its connection is freed.
func TestAClientLeavesDuringItsRequest(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		whole := lanetest.Publishing("b", `"the whole body"`)
		early, late := k.CallOnLane(), k.CallOnLane()
		early.Send(whole[:len(whole)-1])
		late.Send(whole[:len(whole)-1])
		require.NoError(t, early.Conn.Close())
		k.WantOnLane(1)
		k.WantOnLaneAfter(10*time.Second, 0)
		require.NoError(t, late.Conn.Close())
		status, _ := k.Get("GET", "/v1/topics/b", "")
		require.Equal(t, http.StatusNotFound, status, "nobody has published")
	})
}
