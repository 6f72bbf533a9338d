package daemon

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// Origins of pages: two that are allowed and one that is not. noPage is a client that
// sends no Origin.
const (
	appPage   = "https://app.example"
	localPage = "http://localhost:3000"
	evilPage  = "https://evil.example"
	noPage    = ""
)

var someOrigins = []string{appPage, localPage}

// everyWay lists every setting of lane.
var everyWay = append([]string{"off"}, lanes...)

// startCORS is startLane with allowed origins and a short poll timeout.
func startCORS(t *testing.T, lane string, origins ...string) *running {
	t.Helper()
	return startLane(t, lane, func(c *config.Config) {
		c.Origins = origins
		c.Transport.PollTimeout = 100 * time.Millisecond
	})
}

// from returns a request as a page sends it. lines are further header lines.
func from(page, line, body string, lines ...string) string {
	text := line + " HTTP/1.1\r\nHost: pubsubd.example\r\n"
	if page != noPage {
		text += "Origin: " + page + "\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n"
	}
	if body != "" {
		lines = append(lines, "Content-Length: "+strconv.Itoa(len(body)))
	}
	for _, l := range lines {
		text += l + "\r\n"
	}
	return text + "\r\n" + body
}

// mayRead returns the header lines of an answer that the page may read.
func mayRead(page string) string {
	return "Access-Control-Allow-Origin: " + page + "\r\nAccess-Control-Expose-Headers: Retry-After, X-Request-Id\r\n"
}

const varies = "Vary: Origin\r\n"

// wantFor checks the CORS headers of an answer when someOrigins are allowed.
func wantFor(t *testing.T, page, head string) {
	t.Helper()
	if page == appPage || page == localPage {
		require.Contains(t, head, mayRead(page))
	} else {
		require.NotContains(t, head, "Access-Control")
	}
	require.Equal(t, 1, strings.Count(head, varies), "whoever asks: %q", head)
}

// visit sends every kind of request from one page on one connection. It returns the heads
// of the answers, by the name of the request.
func (d *running) visit(page string) map[string]string {
	d.Helper()
	session := d.open(`"a@oldest"`).Session
	poll := "GET /v1/sessions/" + session + "/poll?ack="
	c := lanetest.DialRaw(d, d.PublicAddr(), aMinute)
	heads := map[string]string{}
	for _, request := range []struct{ name, text string }{
		{"publish", from(page, "POST /v1/topics/a/messages", "1")},
		{"publish again", from(page, "POST /v1/topics/a/messages", "2")},
		{"poll with frames", from(page, poll+"0", "")},
		{"poll with one frame", from(page, poll+"0&mode=single", "")},
		{"poll without a session", from(page, "GET /v1/poll?topic=a@oldest", "")},
		{"problem of net/http's", from(page, poll+"0&mode=multiple&format=xml", "")},
		{"problem", from(page, poll+"99", "")},
		{"empty poll", from(page, "GET /v1/sessions/"+d.open(`"nobody"`).Session+"/poll?ack=0", "")},
		{"problem of a publish", from(page, "POST /v1/topics/a..b/messages", "3")},
		{"unknown path", from(page, "GET /v1/nothing", "")},
		{"topic", from(page, "GET /v1/topics/a", "")},
		{"stream", from(page, poll+"0&mode=stream", "")},
	} {
		head, _ := c.Ask(request.text)
		heads[request.name] = head
	}
	return heads
}

// An allowed page can read every answer, also problems. Another page can read none, and
// what makes topics is refused. The lane sends the same heads, byte for byte.
func TestAllowedPagesReadEveryAnswer(t *testing.T) {
	t.Parallel()
	for _, page := range []string{appPage, localPage, evilPage, noPage} {
		t.Run(page, func(t *testing.T) {
			plain := startCORS(t, "off", someOrigins...).visit(page)
			for name, head := range plain {
				wantFor(t, page, head)
				refused := page == evilPage && (strings.Contains(name, "publish") || name == "poll without a session")
				require.Equal(t, refused, strings.Contains(head, "403 Forbidden"), "%s: %s", name, head)
			}
			for _, lane := range lanes {
				d := startCORS(t, lane, someOrigins...)
				require.Equal(t, plain, d.visit(page), lane)
				require.Greater(t, d.calls("poll", "lane"), 1, "the lane had a part in it")
				require.Equal(t, page != evilPage, d.calls("publish", "lane") > 0)
			}
		})
	}
}

func TestNoCORSHeadersWithoutAllowedOrigins(t *testing.T) {
	t.Parallel()
	for _, lane := range everyWay {
		for name, head := range startCORS(t, lane).visit(evilPage) {
			require.NotContains(t, head, "Access-Control", name)
			require.NotContains(t, head, "Vary", name)
		}
	}
}

// If all origins are allowed, every answer says so. Answers then do not vary by origin.
func TestAllOriginsCanBeAllowed(t *testing.T) {
	t.Parallel()
	for _, page := range []string{appPage, "null", noPage} {
		plain := startCORS(t, "off", "*").visit(page)
		for _, head := range plain {
			require.Contains(t, head, mayRead("*"))
			require.NotContains(t, head, "Vary")
			require.NotContains(t, head, "403")
		}
		for _, lane := range lanes {
			d := startCORS(t, lane, "*")
			require.Equal(t, plain, d.visit(page), lane)
			require.Positive(t, d.calls("publish", "lane"), "without Check, any origin's stay there")
		}
	}
}

// A proxy sends the requests of all pages on one connection. Each answer has the headers
// of its own origin, whether the message arrives before or after the poll.
func TestEachAnswerOfAConnectionHasItsOrigin(t *testing.T) {
	pages := []string{appPage, localPage, noPage, evilPage, localPage, appPage}
	for _, lane := range everyWay {
		t.Run(lane, func(t *testing.T) {
			d := startLane(t, lane, func(c *config.Config) { c.Origins = someOrigins })
			proxy := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
			for i, page := range pages {
				session := d.open(`"a"`).Session
				proxy.Send(from(page, "GET /v1/sessions/"+session+"/poll?ack=0", ""))
				d.waitParked(1)
				d.post("/v1/topics/a/messages", strconv.Itoa(i))
				head, body := proxy.Exactly()
				wantFor(t, page, head)
				require.Contains(t, body, fmt.Sprintf(`"data":%d}`, i))

				head, again := proxy.Ask(from(page, "GET /v1/sessions/"+session+"/poll?ack=0", ""))
				wantFor(t, page, head)
				require.Equal(t, body, again)

				head, _ = proxy.Ask(from(page, "GET /v1/sessions/none/poll?ack=0", ""))
				require.Contains(t, head, "404 Not Found")
				wantFor(t, page, head)

				head, _ = proxy.Ask(from(page, "POST /v1/topics/b/messages", "1"))
				require.Equal(t, page != evilPage, strings.Contains(head, "200 OK"), head)
				wantFor(t, page, head)
			}
		})
	}
}

// One message goes to pages of several origins and to a client without one. The answers
// share all bytes except their heads.
func TestOneMessageIsSentToPagesOfSeveralOrigins(t *testing.T) {
	pages := []string{appPage, localPage, noPage, evilPage}
	for _, lane := range everyWay {
		t.Run(lane, func(t *testing.T) {
			d := startLane(t, lane, func(c *config.Config) { c.Origins = someOrigins })
			conns := make([]*lanetest.RawConn, 3*len(pages))
			for i := range conns {
				conns[i] = lanetest.DialRaw(t, d.PublicAddr(), aMinute)
				conns[i].Send(from(pages[i%len(pages)], "GET /v1/sessions/"+d.open(`"a"`).Session+"/poll?ack=0", ""))
			}
			d.waitParked(len(conns))
			d.post("/v1/topics/a/messages", `"for all"`)
			for i, c := range conns {
				head, body := c.Exactly()
				wantFor(t, pages[i%len(pages)], head)
				require.Contains(t, body, `"for all"`)
			}
		})
	}
}

// preflight asks whether a page may publish.
func (d *running) preflight(page string) (head, body string) {
	d.Helper()
	return lanetest.DialRaw(d, d.PublicAddr(), aMinute).Ask(from(page, "OPTIONS /v1/topics/a/messages", "",
		"Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type"))
}

func TestAPreflightOfAnAllowedOriginSucceeds(t *testing.T) {
	const may = "Access-Control-Allow-Headers: Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-Id, traceparent, tracestate\r\nAccess-Control-Allow-Methods: GET, POST, PATCH, DELETE\r\n"
	d := startCORS(t, "handoff", someOrigins...)
	head, body := d.preflight(appPage)
	require.Equal(t, "HTTP/1.1 204 No Content\r\n"+may+
		"Access-Control-Allow-Origin: https://app.example\r\nAccess-Control-Expose-Headers: Retry-After, X-Request-Id\r\nAccess-Control-Max-Age: 7200\r\n"+
		"Cache-Control: no-store, no-transform\r\nVary: Origin\r\nX-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\nDate: …\r\n\r\n", head)
	require.Empty(t, body)

	head, body = d.preflight(evilPage)
	require.Contains(t, head, "403 Forbidden")
	wantFor(t, evilPage, head)
	require.Contains(t, body, "cors.origins")

	head, _ = startCORS(t, "handoff", "*").preflight("null")
	require.Contains(t, head, "204 No Content")
	require.Contains(t, head, may+mayRead("*"))

	head, body = startCORS(t, "handoff").preflight(appPage)
	require.Contains(t, head, "403 Forbidden")
	require.NotContains(t, head, "Access-Control")
	require.Contains(t, body, "cors.origins")
}

// The daemon refuses OPTIONS requests that are not preflights.
func TestOtherOptionsRequestsAreNoPreflight(t *testing.T) {
	c := lanetest.DialRaw(t, startCORS(t, "handoff", someOrigins...).PublicAddr(), aMinute)
	for _, request := range []string{
		from(appPage, "OPTIONS /v1/topics/a/messages", ""),
		from(noPage, "OPTIONS /v1/topics/a/messages", "", "Access-Control-Request-Method: POST"),
	} {
		head, _ := c.Ask(request)
		require.Contains(t, head, "405 Method Not Allowed")
	}
	head, _ := c.Ask(from(appPage, "OPTIONS /elsewhere", "", "Access-Control-Request-Method: POST"))
	require.Contains(t, head, "404 Not Found")
	head, _ = c.Ask(from(appPage, "OPTIONS *", "", "Access-Control-Request-Method: POST"))
	require.Contains(t, head, "204 No Content")
	require.NotContains(t, head, "Access-Control-Allow-Methods")
}

// refusedOrigins returns the origins that were logged as refused, in order.
func (d *running) refusedOrigins() (origins []string) {
	for _, e := range d.logged.All() {
		if strings.Contains(e.Message, "cors.origins") {
			origins = append(origins, fmt.Sprint(e.ContextMap()["origin"]))
		}
	}
	return origins
}

// Whatever a refused page asks for, its origin is logged once. Allowed pages, those of the
// daemon's own origin, and other clients are not logged.
func TestTheOriginOfARefusedPageIsLogged(t *testing.T) {
	t.Parallel()
	const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
	for _, lane := range everyWay {
		t.Run(lane, func(t *testing.T) {
			d := startCORS(t, lane, someOrigins...)
			session := d.open(`"a"`).Session
			for _, page := range []string{appPage, localPage, noPage} {
				d.visit(page)
			}
			own := []string{"Origin: http://pubsubd.example", "Sec-Fetch-Site: same-origin"}
			for _, request := range []string{
				from(noPage, "POST /v1/topics/a/messages", "1", own...), from(noPage, "GET /v1/poll?topic=a", "", own...),
				from(noPage, "POST /v1/topics/a/messages", "1", own[0]), from(noPage, "GET /v1/ws", "", own[0], upgrade),
			} {
				lanetest.DialRaw(t, d.PublicAddr(), aMinute).Ask(request)
			}
			require.Empty(t, d.refusedOrigins())

			var want []string
			for i, request := range []string{
				"GET /v1/poll?topic=a", "GET /v1/sse?topic=a", "GET /v1/topics", "GET /v1/nothing", "POST /v1/topics/a/messages", "DELETE /v1/sessions/" + session,
				"OPTIONS /v1/sessions", "GET /v1/ws",
			} {
				page, line := fmt.Sprintf("https://evil-%d.example", i), ""
				switch {
				case strings.HasPrefix(request, "OPTIONS"):
					line = "Access-Control-Request-Method: POST"
				case strings.HasSuffix(request, "/ws"):
					line = upgrade
				default:
					line = "Accept: */*"
				}
				for range 3 {
					lanetest.DialRaw(t, d.PublicAddr(), aMinute).Ask(from(page, request, "", line))
				}
				want = append(want, page)
				require.Equal(t, want, d.refusedOrigins(), request)
			}
		})
	}
}

// A proxy sends the poll of a refused page on a connection of the lane.
func TestTheOriginOfARefusedPageOnTheLaneIsLogged(t *testing.T) {
	t.Parallel()
	for _, lane := range lanes {
		d := startCORS(t, lane, someOrigins...)
		proxy := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
		session := d.open(`"a"`).Session
		for _, page := range []string{noPage, evilPage, evilPage, appPage} {
			proxy.Ask(from(page, "GET /v1/sessions/"+session+"/poll?ack=0", ""))
		}
		require.Greater(t, d.calls("poll", "lane"), 2, "the lane read all but the first")
		require.Equal(t, []string{evilPage}, d.refusedOrigins())
	}
}

// net/http answers a preflight on a connection of the lane. The lane serves the next
// poll.
func TestAPreflightBetweenPolls(t *testing.T) {
	for _, lane := range lanes {
		d := startCORS(t, lane, someOrigins...)
		c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
		poll := from(appPage, "GET /v1/sessions/"+d.open(`"a"`).Session+"/poll?ack=0", "")
		preflight := from(appPage, "OPTIONS /v1/sessions", "", "Access-Control-Request-Method: POST")
		for range 2 {
			head, _ := c.Ask(poll)
			require.Contains(t, head, mayRead(appPage))
			head, _ = c.Ask(preflight)
			require.Contains(t, head, "204 No Content")
		}
	}
}
