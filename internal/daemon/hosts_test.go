package daemon

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// A page of rebound.example whose name resolves to the daemon's address sends this.
const reboundHost = "rebound.example:8080"

const upgradeLines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="

// under returns a request with this Host from a page of the same origin.
func under(host, line, body string, lines ...string) string {
	return strings.Replace(from(noPage, line, body, append(lines, "Origin: http://"+host)...), sceneHost, host, 1)
}

// everyCall returns a request of each kind, by name. They make the topic rebound.
func (d *running) everyCall(host string) map[string]string {
	session := d.open(`"a"`).Session
	calls := map[string]string{
		"publish": under(host, "POST /v1/topics/rebound/messages", "1"), "publish many": under(host, "POST /v1/messages", `[{"topic":"rebound","data":1}]`, "Content-Type: application/json"),
		"session": under(host, "POST /v1/sessions", `{"topics":["rebound"]}`), "poll of topics": under(host, "POST /v1/poll", `{"topics":["rebound"]}`),
		"change": under(host, "PATCH /v1/sessions/"+session, `{"add":["rebound"]}`), "WebSocket": under(host, "GET /v1/ws?topic=rebound", "", upgradeLines),
		"preflight": under(host, "OPTIONS /v1/sessions", "", "Access-Control-Request-Method: POST"), "unknown method": under(host, "PUT /v1/topics", ""),
		"close": under(host, "DELETE /v1/sessions/"+session, ""), "absolute target": under(host, "GET http://"+host+"/v1/topics", ""),
	}
	for _, path := range []string{
		"/v1/poll?topic=rebound", "/v1/sse?topic=rebound", "/v1/topics", "/v1/topics/a", "/v1/topics/a/messages", "/v1/client.js", "/v1/openapi.yaml", "/v1/nothing",
		"/v1/sessions/" + session, "/v1/sessions/" + session + "/poll?ack=0",
	} {
		calls[path] = under(host, "GET "+path, "")
	}
	return calls
}

// A page that rebound its name to the daemon's address reads, publishes and subscribes to
// nothing, on no transport, also on a connection of the lane.
func TestAReboundPageIsRefused(t *testing.T) {
	for _, lane := range everyWay {
		t.Run(lane, func(t *testing.T) {
			d := startCORS(t, lane, someOrigins...)
			for name, request := range d.everyCall(reboundHost) {
				for _, before := range []string{"", from(noPage, "GET /v1/poll?topic=a@oldest", ""), from(noPage, "POST /v1/topics/b/messages", "1")} {
					c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
					if before != "" {
						c.Ask(before) // then the connection is on the lane
					}
					head, body := c.Ask(request)
					require.Contains(t, head, "HTTP/1.1 421 Misdirected Request\r\n", name)
					require.Contains(t, body, `"code":"wrong_host"`, name)
					require.Contains(t, body, "hosts", name)
				}
			}
			_, topics := d.get("http://" + d.PublicAddr() + "/v1/topics")
			require.NotContains(t, topics, "rebound")
			require.Equal(t, 1, d.logged.FilterField(zap.String("host", "rebound.example")).Len(), "the log tells the name, once")
		})
	}
}

// The lane answers a known client for as long as its name is listed.
func TestAReloadOfHostsHoldsOnTheLane(t *testing.T) {
	t.Parallel()
	for _, lane := range everyWay {
		t.Run(lane, func(t *testing.T) {
			d := startCORS(t, lane)
			c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
			poll := from(noPage, "GET /v1/sessions/"+d.open(`"a"`).Session+"/poll?ack=0", "")
			for range 2 {
				for range 3 {
					head, _ := c.Ask(poll)
					require.Contains(t, head, "200 OK")
				}
				d.reloadWith(func(c *config.Config) { c.Hosts = []string{"other.example"} })
				head, _ := c.Ask(poll)
				require.Contains(t, head, "421 ")
				d.reloadWith(func(c *config.Config) { c.Hosts = []string{"other.example", "*.example"} })
			}
		})
	}
}

// The addresses and localhost work without any setting. So do listed names.
func TestTheDaemonIsAddressedByAddressesAndListedNames(t *testing.T) {
	d := startCORS(t, "handoff")
	for _, host := range []string{"127.0.0.1", d.PublicAddr(), "localhost:8080", "[::1]:8080", "192.168.1.7", "h", sceneHost, strings.ToUpper(sceneHost) + ".:80"} {
		c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
		for range 2 {
			head, _ := c.Ask(under(host, "GET /v1/poll?topic=a", ""))
			require.Contains(t, head, "200 OK", host)
		}
	}
	head, _ := lanetest.DialRaw(t, d.PublicAddr(), aMinute).Ask("GET /v1/topics HTTP/1.0\r\n\r\n")
	require.Contains(t, head, "200 OK", "no browser sends HTTP/1.0")
}

// A rebound page reaches neither profiles nor metrics nor the log's level.
func TestAReboundPageReachesNothingOfTheAdminListener(t *testing.T) {
	d := startCORS(t, "handoff", "*") // also if every page may use the public listener
	for _, path := range []string{"GET /metrics", "GET /livez", "GET /readyz", "GET /sessions", "GET /loglevel", "PUT /loglevel", "GET /debug/pprof/heap", "GET /debug/pprof/cmdline", "GET /nothing"} {
		head, body := lanetest.DialRaw(t, d.AdminAddr(), aMinute).Ask(under(reboundHost, path, ""))
		require.Contains(t, head, "421 Misdirected Request", path)
		require.Contains(t, body, `"code":"wrong_host"`)
	}
	for _, host := range []string{d.AdminAddr(), "localhost", "10.1.2.3:8081", sceneHost} {
		head, _ := lanetest.DialRaw(t, d.AdminAddr(), aMinute).Ask("GET /readyz HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
		require.Contains(t, head, "200 OK", host)
	}
}

// HTTP/2 has the name in :authority.
func TestHostsHoldInEveryProtocol(t *testing.T) {
	eachTongue(t, func(c *config.Config) { c.Hosts = []string{"app.example"} }, func(s *spoken) {
		for host, want := range map[string]int{reboundHost: http.StatusMisdirectedRequest, "app.example": http.StatusOK, "127.0.0.1": http.StatusOK} {
			for _, path := range []string{"/v1/poll?topic=a@oldest&mode=single", "/v1/topics", "/v1/sse?topic=a"} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+path, nil)
				require.NoError(t, err)
				req.Host = host
				resp, err := s.speaker.Do(req)
				require.NoError(t, err)
				resp.Body.Close()
				require.Equal(t, want, resp.StatusCode, "%s %s", host, path)
			}
		}
	})
}

// No page can rebind a name to a daemon with a certificate, nor gain by that where every
// origin is allowed. There an empty list refuses nobody.
func TestAnEmptyListOfHosts(t *testing.T) {
	eachTongue(t, func(c *config.Config) { c.Hosts = nil }, func(s *spoken) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"/v1/topics", nil)
		require.NoError(t, err)
		req.Host = "proxied.example"
		resp, err := s.speaker.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, s.tls, resp.StatusCode == http.StatusOK)
	})
	d := start(t, func(c *config.Config) { c.Hosts, c.Origins = nil, []string{"*"} })
	head, _ := lanetest.DialRaw(t, d.PublicAddr(), aMinute).Ask(under("proxied.example", "GET /v1/topics", ""))
	require.Contains(t, head, "200 OK")
}
