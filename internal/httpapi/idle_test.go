//go:build linux

package httpapi

import (
	"encoding/base64"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
)

// The lane closes a connection that is silent for too long. A connection with a waiting
// poll or stream does not count as silent.
func TestASilentConnectionIsClosedInTime(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		silent := k.callOnLane()
		poll, stream := k.callOnLane(), k.call()
		poll.send(polling(k.openA(), 0))
		stream.send(polling(k.openA(), 0, streaming))
		frames := stream.wantStream()
		k.wantParked(2)

		k.later(lane.Idle - 5*time.Second)
		require.Equal(t, 3, k.onLane())
		k.wantOnLaneAfter(lane.Idle, 2)
		silent.wantClosed()

		k.later(24 * time.Hour)
		k.tell(1, 1, 10)
		poll.wantMessages(1, 1)
		stream.wantNext(frames, 1, 1)
		require.Equal(t, 2, k.onLane())
	})
}

// A request restarts the idle timeout of its connection.
func TestAnActiveConnectionIsNotClosed(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		c := k.callOnLane()
		k.later(lane.Idle - 5*time.Second)
		c.send(publishing("b", "1"))
		c.wantPublished("b")
		k.later(lane.Idle + 10*time.Second)
		c.send(publishing("b", "2"))
		c.wantPublished("b")
		k.wantOnLane(1)
	})
}

// As TestASilentConnectionIsClosedInTime, for clients that become silent after an
// answered poll.
func TestAnIdleConnectionIsClosedAfterItsPoll(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		poll, stateless := k.call(), k.call()
		poll.send(polling(k.openA(), 0))
		stateless.send("GET /v1/poll?topic=a HTTP/1.1\r\nHost: h\r\n\r\n")
		hello := stateless.wantPosition()
		stateless.send("GET /v1/poll?topic=" + hello + " HTTP/1.1\r\nHost: h\r\n\r\n")
		k.wantParked(2)
		k.tell(1, 1, 10)
		poll.wantMessages(1, 1)
		stateless.wantMessages(1, 1)
		k.wantParked(0)
		k.wantOnLaneAfter(lane.Idle, 0)
		poll.wantClosed()
		stateless.wantClosed()
	})
}

// When the rest of a body is late, the lane returns the connection to net/http. There,
// the request waits for its body and publishes once.
func TestAnUnfinishedRequestReturnsToNetHTTP(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		c := k.callOnLane()
		whole := publishing("b", `"the whole body"`)
		c.send(publishing("b", "1"), whole[:len(whole)-9])
		require.EqualValues(t, 1, c.wantPublished("b"))
		c.send(whole[len(whole)-9 : len(whole)-6])
		returned := func() int { return int(k.counted("pubsubd_lane_returned_total")) }
		require.Zero(t, returned())
		k.later(5 * time.Second)
		require.Zero(t, returned())
		require.Equal(t, 1, k.onLane())
		k.wantOnLaneAfter(10*time.Second, 0)
		require.Equal(t, 1, returned())
		byNetHTTP := k.counted("pubsubd_calls_total", "publish", "net/http")

		c.send(whole[len(whole)-6:])
		require.EqualValues(t, 2, c.wantPublished("b"))
		require.Equal(t, byNetHTTP+1, k.counted("pubsubd_calls_total", "publish", "net/http"))
		_, text := k.get("GET", "/v1/topics/b/messages", "")
		require.Contains(t, text, base64.StdEncoding.EncodeToString([]byte(`"the whole body"`)))

		k.wantOnLane(1) // the lane takes the connection again
		c.send(publishing("b", "3"))
		require.EqualValues(t, 3, c.wantPublished("b"))
		require.Equal(t, byNetHTTP+1, k.counted("pubsubd_calls_total", "publish", "net/http"))
	})
}

// A client may leave before or after the lane stops waiting for the rest of its request.
// In both cases its connection is freed.
func TestAClientLeavesDuringItsRequest(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		whole := publishing("b", `"the whole body"`)
		early, late := k.callOnLane(), k.callOnLane()
		early.send(whole[:len(whole)-1])
		late.send(whole[:len(whole)-1])
		require.NoError(t, early.conn.Close())
		k.wantOnLane(1)
		k.wantOnLaneAfter(10*time.Second, 0)
		require.NoError(t, late.conn.Close())
		status, _ := k.get("GET", "/v1/topics/b", "")
		require.Equal(t, http.StatusNotFound, status, "nobody has published")
	})
}
