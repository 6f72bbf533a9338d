package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// retryOnly is a stream without an event. HAProxy's begins with a comment.
const retryOnly = `^(: .*\n)?retry: 1500\n$`

// events sends the request of an EventSource as a page of this origin does. It tries again
// as a browser does if the proxy closes the connection without an answer. HAProxy does so
// when it reused a connection that the daemon had closed.
func (p *proxied) events(page, topic string) (status int, header http.Header, body string) {
	p.Helper()
	req, err := http.NewRequest(http.MethodGet, p.url+"/v1/sse?topic="+topic, nil)
	require.NoError(p, err)
	if page != noPage {
		req.Header.Set("Origin", page)
	}
	resp, err := newClient(p.T).Do(req)
	if errors.Is(err, io.EOF) {
		return p.events(page, topic)
	}
	require.NoError(p, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(p, err)
	return resp.StatusCode, resp.Header, string(text)
}

// While the daemon is down, a proxy tells an EventSource when to retry. Only pages of
// listed origins can read that. Requests to other paths fail.
func TestAProxyTellsAnEventSourceToRetryWhileTheDaemonIsDown(t *testing.T) {
	t.Parallel()
	behindEach(t, func(t *testing.T, kind proxyKind) {
		t.Parallel()
		for name, others := range map[string][]string{"no origin is listed": asShipped, "an origin is listed": kind.list(appPage)} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				d := start(t, func(c *config.Config) { c.Origins = someOrigins })
				p := startProxy(t, kind, others, d)
				require.NoError(t, d.wait())
				for _, page := range []string{appPage, evilPage} {
					status, header, body := p.events(page, "a")
					require.Equal(t, http.StatusOK, status)
					require.Equal(t, "text/event-stream", header.Get("Content-Type"))
					require.Equal(t, "no-store, no-transform", header.Get("Cache-Control"))
					require.Equal(t, "Origin", header.Get("Vary"))
					require.Regexp(t, retryOnly, body)
					var want []string
					if page == appPage && len(others) > 0 {
						want = []string{page}
					}
					require.Equal(t, want, header.Values("Access-Control-Allow-Origin"), page)
				}
				for _, path := range []string{"/v1/poll?topic=a", "/v1/sses"} {
					status, _ := p.get(path)
					require.Contains(t, []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, status, path)
				}
			})
		}
	})
}

// A proxy replaces no answer that the daemon gave to an EventSource. If the daemon closes
// the connection or says nothing, the proxy tells the client to retry.
func TestAProxyReplacesOnlyMissingAnswersToAnEventSource(t *testing.T) {
	t.Parallel()
	behindEach(t, func(t *testing.T, kind proxyKind) {
		t.Parallel()
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Query().Get("topic") {
			case "refused":
				http.Error(w, "bad", http.StatusBadRequest)
			case "busy":
				http.Error(w, "busy", http.StatusServiceUnavailable)
			case "closed":
				panic(http.ErrAbortHandler)
			case "silent":
				<-r.Context().Done() // until the proxy gives up
			default:
				_, _ = io.WriteString(w, "[]\n")
			}
		}))
		t.Cleanup(upstream.Close)
		at := strings.TrimPrefix(upstream.URL, "http://")
		p := startProxyTo(t, kind, scaledDown(kind), address{public: at, admin: at})
		for _, c := range []struct {
			topic  string
			status int
			body   string
		}{
			{"refused", http.StatusBadRequest, "^bad\n$"},
			{"busy", http.StatusServiceUnavailable, "^busy\n$"},
			{"closed", http.StatusOK, retryOnly},
			{"silent", http.StatusOK, retryOnly},
		} {
			status, _, body := p.events(noPage, c.topic)
			require.Equal(t, c.status, status, c.topic)
			require.Regexp(t, c.body, body, c.topic)
		}
	})
}

// A restarting daemon has a fixed address. It goes on with the state that the daemon
// before it left.
type restarting struct {
	*testing.T
	listen  config.Listen
	origins []string
	state   string
	*running
}

func startRestarting(t *testing.T, origins ...string) *restarting {
	t.Helper()
	r := &restarting{
		T: t, listen: config.Listen{Public: freePort(t), Admin: freePort(t)}, origins: origins,
		state: t.TempDir(),
	}
	r.startAgain()
	return r
}

func (r *restarting) startAgain() {
	r.Helper()
	r.running = start(r.T, func(c *config.Config) {
		keptIn(r.state)(c)
		c.Listen, c.Origins = r.listen, r.origins
	})
}

// publishElsewhere publishes a message while the daemon is down. No subscriber can be
// connected then: the message is in the state when the daemon starts again.
func (r *restarting) publishElsewhere() wire.Position {
	r.Helper()
	d := start(r.T, keptIn(r.state))
	p := d.published()
	require.NoError(r, d.wait())
	return p
}

// A client behind a proxy loses nothing by a planned restart, over any transport.
func TestClientsBehindAProxySurviveARestart(t *testing.T) {
	t.Parallel()
	behindEach(t, func(t *testing.T, kind proxyKind) {
		t.Parallel()
		d := startRestarting(t)
		p := startProxy(t, kind, asShipped, d.running)
		client, err := pubsub.New(p.url, pubsub.WithMaxBackoff(100*time.Millisecond))
		require.NoError(t, err)
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), aMinute)
		defer cancel()
		subs := map[string]*pubsub.Subscription{}
		for _, way := range []string{"long poll", "stream", "stateless stream", "server-sent events", "WebSocket"} {
			sub, err := client.Subscribe(ctx, []wire.Start{pubsub.FromNow("a")}, ways[way]...)
			require.NoError(t, err, way)
			defer sub.Close()
			subs[way] = sub
		}
		wantEach := func(want wire.Position) {
			t.Helper()
			for way, sub := range subs {
				item, err := sub.Next(ctx)
				require.NoError(t, err, way)
				require.Nil(t, item.Gap, way)
				require.Equal(t, want, item.Message.Position, way)
			}
		}
		wantEach(d.published())
		require.NoError(t, d.wait())
		missed := d.publishElsewhere()
		d.startAgain()
		wantEach(missed)
		wantEach(d.published())
	})
}

// A followingPage is a page in a browser that follows topic a with a plain EventSource.
// It reports each event to its own server. The fragment of its URL is the origin of the
// stream, or empty if that is the page's own.
type followingPage struct {
	*testing.T
	*httptest.Server
	events chan pageEvent
}

// A pageEvent is an event of an EventSource.
type pageEvent struct {
	Type, ID string
	State    int // readyState: 0 while it reconnects, 2 once it has stopped for good
}

const followingHTML = `<!doctype html>
<script>
const events = new EventSource(location.hash.slice(1) + "/v1/sse?topic=a");
let reports = Promise.resolve();
for (const type of ["open", "error", "hello", "message", "gap", "end"]) events.addEventListener(type, (e) => {
  const body = JSON.stringify({ type, id: e.lastEventId ?? "", state: events.readyState });
  reports = reports.then(() => fetch("/report", { method: "POST", body }));
});
</script>`

func newFollowingPage(t *testing.T) *followingPage {
	t.Helper()
	page := &followingPage{T: t, events: make(chan pageEvent, 100)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, followingHTML)
	})
	mux.HandleFunc("POST /report", func(_ http.ResponseWriter, r *http.Request) {
		var e pageEvent
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			e.Type = err.Error()
		}
		page.events <- e
	})
	page.Server = httptest.NewServer(mux)
	t.Cleanup(page.Close)
	return page
}

// next returns the next event. It fails if the EventSource has stopped.
func (page *followingPage) next() pageEvent {
	page.Helper()
	select {
	case e := <-page.events:
		require.NotEqual(page, 2, e.State, "the page has stopped: %+v", e)
		return e
	case <-time.After(aMinute):
		require.FailNow(page, "the page has reported nothing")
	}
	return pageEvent{}
}

// waitUnreachable waits until the proxy has answered in place of the daemon: with a
// stream that has no event. The daemon's streams have hello or end.
func (page *followingPage) waitUnreachable() {
	page.Helper()
	for last := ""; ; {
		e := page.next()
		if last == "open" && e.Type == "error" {
			return
		}
		last = e.Type
	}
}

// wantMessage waits for the next message. The page may have to reconnect first, but must
// get no gap.
func (page *followingPage) wantMessage(want wire.Position) {
	page.Helper()
	for {
		e := page.next()
		if e.Type == "open" || e.Type == "error" || e.Type == "hello" {
			continue
		}
		require.Equal(page, "message", e.Type)
		require.Equal(page, want.String(), e.ID)
		return
	}
}

// A page with a plain EventSource survives a restart of the daemon behind a proxy. It
// gets the messages that it missed, and each once.
func TestAPageBehindAProxySurvivesARestart(t *testing.T) {
	t.Parallel()
	behindEach(t, func(t *testing.T, kind proxyKind) {
		t.Parallel()
		t.Run("of the same origin", func(t *testing.T) {
			t.Parallel()
			page, d := newFollowingPage(t), startRestarting(t)
			p := startProxy(t, kind, kind.site(page.Listener.Addr().String()), d.running)
			page.survivesARestart(p.url+"/", d)
		})
		t.Run("of another origin", func(t *testing.T) {
			t.Parallel()
			page := newFollowingPage(t)
			d := startRestarting(t, page.URL)
			p := startProxy(t, kind, kind.list(page.URL), d.running)
			page.survivesARestart(page.URL+"/#"+p.url, d)
		})
	})
}

func (page *followingPage) survivesARestart(address string, d *restarting) {
	page.Helper()
	defer browse(page.T, address)()
	for page.next().Type != "hello" {
	}
	page.wantMessage(d.published())
	require.NoError(page, d.wait())
	page.waitUnreachable()
	missed := d.publishElsewhere()
	d.startAgain()
	page.wantMessage(missed)
	page.wantMessage(d.published())
}
