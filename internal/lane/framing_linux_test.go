package lane_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// A proxy that trusts Content-Length, where the daemon trusts Transfer-Encoding, takes
// the rest of the body for another client's request. So the daemon serves nothing after
// such a request. RFC 9112, section 6.1.
func TestTheConnectionEndsAfterARequestThatCouldBeFramedInTwoWays(t *testing.T) {
	const path, body, smuggled = "/v1/topics/framed/messages", "1\r\n1\r\n0\r\n\r\n", "POST /v1/topics/smuggled/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1"
	for name, request := range map[string]string{
		"length, then chunked":    "POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\nTransfer-Encoding: chunked\r\n\r\n" + body,
		"chunked, then length":    "POST " + path + " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + body,
		"in HTTP/1.0":             "POST " + path + " HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: 11\r\n\r\n" + body,
		"of a GET":                "GET /v1/topics/framed HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 11\r\n\r\n" + body,
		"where nothing is served": "POST /nothing HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 11\r\n\r\n" + body,
	} {
		t.Run(name, func(t *testing.T) {
			for _, way := range []lane.Way{lane.Off, lane.HandOff} {
				k := newLaneKit(t, way)
				c := k.Call()
				c.Send(lanetest.Publishing("first", "1")) // now the lane has the connection, if there is a lane
				c.WantPublished("first")
				c.Send(request, smuggled)
				resp := c.Answer()
				_, err := io.Copy(io.Discard, resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.True(t, resp.Close, "the answer says that the connection ends")
				c.WantClosed()
				status, _ := k.Get(http.MethodGet, "/v1/topics/smuggled", "")
				require.Equal(t, http.StatusNotFound, status)
			}
		})
	}
}
