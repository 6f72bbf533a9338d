package lane_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const topicList = "GET /v1/topics HTTP/1.1\r\nHost: h\r\n\r\n"

// Some clients send an empty line after a request. The lane ignores it before every request, also
// before one that it hands back, and in whatever pieces it comes (RFC 9112, section 2.2).
func TestAnEmptyLineBeforeARequestIsIgnored(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		session := k.OpenA()
		k.Tell(1, 3, 10)
		c := k.Call()
		c.Send(lanetest.Polling(session, 0, "&mode=single"), "\r\n") // net/http has read it, too
		c.WantMessages(1, 1)
		require.Equal(t, 1, k.OnLane())
		c.Send(lanetest.Polling(session, 1, "&mode=single"), "\r\n", lanetest.Publishing("b", "1"), "\r\n")
		c.WantMessages(2, 2)
		c.WantPublished("b")
		c.Send("\r")
		c.Send("\n")
		c.Send(lanetest.Polling(session, 2))
		c.WantMessages(3, 3)
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
		c.Send("\r\n", topicList)
		c.WantAnswer(http.StatusOK)
	})
}

// The lane skips a few bytes of line ends, not any number. What follows is not HTTP.
func TestManyEmptyLinesAreNotIgnored(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		c := k.CallOnLane()
		c.Send("\r\n\r\n\r\n", topicList)
		require.Contains(t, c.WantAnswer(http.StatusBadRequest), "malformed HTTP request")
		c.WantClosed()
	})
}

// A request that net/http's parser cannot read gets a problem, which repeats nothing of it. The
// connection ends, because nobody knows where the next request begins.
func TestARequestThatIsNotHTTPGetsAProblem(t *testing.T) {
	const poll = "GET /v1/poll?topic=a&token=secret HTTP/1.1\r\nHost: h\r\n"
	for request, fault := range map[string]string{
		"GET /v1/poll?topic=a&token=secret\r\nHost: h\r\n\r\n":              "malformed HTTP request",
		"GET /v1/poll?topic=a&token=secret HTTP/1.1 x\r\nHost: h\r\n\r\n":   "malformed HTTP version",
		"G(T /v1/poll?topic=a&token=secret HTTP/1.1\r\nHost: h\r\n\r\n":     "invalid method",
		"GET /v1/poll?topic=a&token=secret\x00 HTTP/1.1\r\nHost: h\r\n\r\n": "net/url: invalid control character in URL",
		"GET /v1/poll%zz?topic=a&token=secret HTTP/1.1\r\nHost: h\r\n\r\n":  "invalid URL escape",
		"GET v1/poll?topic=a&token=secret HTTP/1.1\r\nHost: h\r\n\r\n":      "invalid URI for request",
		poll + "Host: h\r\n\r\n":                                              "too many Host headers",
		poll + "Cookie secret\r\n\r\n":                                        "malformed MIME header: missing colon",
		poll + "Cookie: secret\x00\r\n\r\n":                                   "malformed MIME header line",
		poll + "Content-Length: secret\r\n\r\n":                               "bad Content-Length",
		poll + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n":               "http: message cannot contain multiple Content-Length headers",
		strings.ReplaceAll(poll, "\r\n", "\n") + "Content-Length: secret\n\n": "bad Content-Length",
	} {
		k := newLaneKit(t, lane.HandOff)
		c := k.CallOnLane()
		c.Send(request, lanetest.Publishing("behind", "1"))
		resp := c.Answer()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, request)
		require.True(t, resp.Close, request)
		require.Equal(t, wire.ProblemType, resp.Header.Get("Content-Type"), request)
		var p wire.Problem
		require.NoError(t, json.Unmarshal(text, &p))
		require.Equal(t, wire.CodeInvalidRequest, p.Code)
		require.Equal(t, "the request is not valid HTTP: "+fault, p.Detail, request)
		require.NotContains(t, string(text), "secret")
		c.WantClosed()
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
		require.EqualValues(t, 1, k.Counted("pubsubd_requests_refused_total", string(wire.CodeInvalidRequest)))
		require.Empty(t, k.Held("behind"))
	}
}

// What the lane cannot judge, net/http answers in its own way.
func TestOtherRequestsThatAreNotHTTPAreHandedBack(t *testing.T) {
	for request, status := range map[string]int{
		"GET /v1/topics HTTP/1.1\r\n\r\n":                                    http.StatusBadRequest, // the parser does not look for a Host
		"GET /v1/topics HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: x\r\n\r\n": http.StatusNotImplemented,
		"GET /v1/topics HTTP/1.1\r\nHost: h\r\nCookie : x\r\n\r\n":           http.StatusBadRequest,
		"GET /v1/topics HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n":          http.StatusExpectationFailed,
		"GET /v1/topics HTTP/2.0\r\nHost: h\r\n\r\n":                         http.StatusHTTPVersionNotSupported,
	} {
		k := newLaneKit(t, lane.HandOff)
		c := k.CallOnLane()
		c.Send(request)
		resp := c.Answer()
		require.Equal(t, status, resp.StatusCode, "%.60s", request)
		require.NotEqual(t, wire.ProblemType, resp.Header.Get("Content-Type"))
		require.NoError(t, resp.Body.Close())
		require.EqualValues(t, 1, k.Counted("pubsubd_lane_returned_total"))
	}
}
