package httpapi

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// HEAD gets the status and the fields of GET, and no body, on each path whose GET ends by itself:
// also of long answers, of those in gzip, and of problems (RFC 9110, section 9.3.2).
func TestHeadIsAnsweredAsGet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: broker.Config{Rules: []broker.Rule{{Name: "a", Pattern: "a", Presence: true}}}})
		k.Publish("a", `"`+lanetest.Long(2_000)+`"`)
		for range 3 {
			k.Publish("long", `"`+lanetest.Long(60_000)+`"`)
		}
		id := k.Open(`{"topics":["a"],"client":"me"}`).Session
		heads, chunked, gzipped := 0, 0, 0
		for _, at := range routes(t, k.api.router) {
			path, isHead := strings.CutPrefix(at, "HEAD ")
			if !isHead {
				continue
			}
			heads++
			for _, topic := range []string{"a", "long", "none"} {
				for _, coding := range []string{"identity", "gzip"} {
					path := strings.NewReplacer("{topic}", topic, "{id}", id).Replace(path)
					get := k.Do("GET", path, "", "Accept-Encoding: "+coding)
					_, err := io.Copy(io.Discard, get.Body)
					require.NoError(t, err)
					require.NoError(t, get.Body.Close())
					head := k.Do("HEAD", path, "", "Accept-Encoding: "+coding)
					none, err := io.ReadAll(head.Body)
					require.NoError(t, err)
					require.NoError(t, head.Body.Close())
					require.Empty(t, none, path)
					require.Equal(t, get.StatusCode, head.StatusCode, path)
					require.Equal(t, get.Header, head.Header, path)
					if len(get.TransferEncoding) > 0 {
						chunked++
					}
					if get.Header.Get("Content-Encoding") == "gzip" {
						gzipped++
					}
				}
			}
		}
		require.Equal(t, 11, heads)
		require.Positive(t, chunked)
		require.Positive(t, gzipped)
		for path, body := range map[string]string{"/v1/topics": "a body", "/v1/topics?token=t": ""} {
			k.WantProblem(wire.CodeInvalidRequest, "GET", path, body)
			status, none := k.Get("HEAD", path, body)
			require.Equal(t, http.StatusBadRequest, status, path)
			require.Empty(t, none)
		}
	})
}

// A poll, an event stream and a WebSocket have no HEAD: it would wait, or open a session.
func TestWhatWaitsHasNoHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		id := k.OpenA()
		for path, allow := range map[string]string{
			"/v1/poll?topic=a": "GET, POST", "/v1/sessions/" + id + "/poll?ack=0": "GET", "/v1/sse?topic=a": "GET", "/v1/ws?topic=a": "GET",
		} {
			resp := k.Do("HEAD", path, "")
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode, path)
			require.Equal(t, allow, resp.Header.Get("Allow"), path)
		}
		require.Equal(t, 1.0, k.Counted("pubsubd_sessions_opened_total"))
	})
}

// OPTIONS * says which methods there are (RFC 9110, section 9.3.7). It counts as a request.
func TestTheServerListsItsMethods(t *testing.T) {
	k := serveLane(t, lane.Off, lanetest.Settings{Limits: limit.Config{Rates: limit.Rates{limit.Requests: {limit.All: lanetest.Once}}}}, nil)
	c := lanetest.DialRaw(t, k.Addr(), lanetest.Surely)
	head, body := c.Exchange("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n")
	require.Contains(t, head, "204 No Content\nAllow: "+allowAll)
	require.Empty(t, body)
	head, _ = c.Exchange("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n")
	require.Contains(t, head, "429 Too Many Requests")
	require.NotContains(t, head, "Allow: ")

	used := map[string]bool{"OPTIONS": true}
	for _, at := range routes(t, k.api.router) {
		method, _, _ := strings.Cut(at, " ")
		used[method] = true
	}
	require.Equal(t, allowAll, allowOf(used))
}
