package daemon

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"
	"github.com/stretchr/testify/require"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// accessed waits for n entries of the access log, and returns them without what varies.
func (d *running) accessed(n int) (entries []map[string]any) {
	d.Helper()
	require.Eventually(d, func() bool { return d.logged.FilterLoggerName("access").Len() >= n }, surely, 10*time.Millisecond)
	for _, e := range d.logged.FilterLoggerName("access").All() {
		m := e.ContextMap()
		require.Less(d, m["took"], surely)
		require.Equal(d, "127.0.0.1", m["client"])
		for _, varies := range []string{"took", "begun", "client", "bytes"} {
			delete(m, varies)
		}
		entries = append(entries, m)
	}
	require.Len(d, entries, n)
	return entries
}

// The access log has an entry for each request, whoever serves it, also at level error.
func TestTheAccessLog(t *testing.T) {
	for _, lane := range []string{"off", "channel", "handoff"} {
		t.Run(lane, func(t *testing.T) {
			d := start(t, func(c *config.Config) { c.Lane, c.Log.Access, c.Log.Level = lane, 1, "error" })
			way := "lane" // net/http reads the first request of a connection, and the lane answers it
			if lane == "off" {
				way = "net/http"
			}
			id := d.open(`"a"`).Session
			c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
			publish := "POST /v1/topics/a/messages?key=k HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\nX-Request-Id: r1\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nContent-Length: 1\r\n\r\n1"
			poll := "GET /v1/sessions/" + id + "/poll?ack=%d HTTP/1.1\r\nHost: h\r\n\r\n"
			c.Ask(publish)
			c.Ask(publish)
			_, frames := c.Ask(fmt.Sprintf(poll, 0))
			require.Equal(t, 2, strings.Count(frames, "\n"))
			c.Send(fmt.Sprintf(poll, 2))
			d.waitParked(1)
			parked := time.Now()
			d.post("/v1/topics/a/messages", "2")
			c.Exactly()
			d.accessed(6) // also that of the poll, before the next request
			require.Less(t, time.Since(parked), surely)
			c.Ask(fmt.Sprintf(poll, 9))
			c.Ask("GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n")
			c.Ask("GET /nothing/secret HTTP/1.1\r\nHost: h\r\n\r\n")
			c.Send("HEAD /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\n\r\n")

			entries := d.accessed(10)
			slices.SortStableFunc(entries, func(a, b map[string]any) int {
				return cmp.Compare(fmt.Sprint(a["agent"]), fmt.Sprint(b["agent"]))
			})
			entry := func(way string, status int, also map[string]any, methodAndRoute ...string) map[string]any {
				m := map[string]any{"way": way, "status": int64(status), "method": methodAndRoute[0]}
				if len(methodAndRoute) > 1 {
					m["route"] = methodAndRoute[1]
				}
				for k, v := range also {
					m[k] = v
				}
				return m
			}
			const toTopic, toPoll = "/v1/topics/{topic}/messages", "/v1/sessions/{id}/poll"
			ids := map[string]any{"agent": "test", "topic": "a", "request_id": "r1", "trace_id": "0af7651916cd43dd8448eb211c80319c"}
			goClient := map[string]any{"agent": "Go-http-client/1.1"}
			goPublish := map[string]any{"agent": "Go-http-client/1.1", "topic": "a"}
			want := []map[string]any{
				entry(way, 200, nil, "GET", toPoll), entry(way, 200, nil, "GET", toPoll),
				entry(way, 400, map[string]any{"code": "ack_beyond_sent"}, "GET", toPoll),
				entry(way, 200, nil, "GET", "/v1/poll"), entry("net/http", 404, map[string]any{"code": "not_found"}, "GET"),
				entry("net/http", 200, map[string]any{"topic": "a"}, "HEAD", toTopic),
				entry("net/http", 201, goClient, "POST", "/v1/sessions"), entry(way, 200, goPublish, "POST", toTopic),
				entry(way, 200, ids, "POST", toTopic), entry(way, 200, ids, "POST", toTopic),
			}
			require.ElementsMatch(t, want, entries)
			d.wantNone([]string{id, "secret", "key=k"})
		})
	}
}

// A client that leaves a poll gets an entry without a status, and one that ends a WebSocket's
// opening gets its entry at once. A reload turns the log on and off.
func TestTheAccessLogOfOtherEnds(t *testing.T) {
	d := start(t, nil)
	d.post("/v1/topics/a/messages", "1")
	d.reloadWith(func(c *config.Config) { c.Log.Access = 1 })
	for _, path := range []string{"/v1/poll?topic=b&hello=true", "/v1/poll?topic=a@oldest"} { // the second is on the lane, from its first byte
		_, _ = d.get("http://" + d.PublicAddr() + path)
	}
	d.accessed(2)
	c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
	c.Send("GET /v1/poll?topic=a HTTP/1.1\r\nHost: h\r\n\r\n")
	c.Exactly()
	c.Send("GET /v1/poll?topic=a@none:0 HTTP/1.1\r\nHost: h\r\n\r\n")
	c.Exactly() // a gap
	d.accessed(4)
	id := d.open(`"c"`).Session
	d.accessed(5)
	c.Send("GET /v1/sessions/" + id + "/poll?ack=0 HTTP/1.1\r\nHost: h\r\n\r\n")
	d.waitParked(1)
	require.NoError(t, c.Close())
	left := d.accessed(6)[5]
	require.Equal(t, map[string]any{"way": "lane", "status": int64(0), "method": "GET", "route": "/v1/sessions/{id}/poll"}, left)

	ws := d.goClient()
	defer ws.Close()
	sub, err := ws.Subscribe(t.Context(), []wire.Start{pubsub.FromOldest("a")}, pubsub.WithTransport(pubsub.WebSocket))
	require.NoError(t, err)
	defer sub.Close()
	_, err = sub.Next(t.Context())
	require.NoError(t, err)
	entry := d.accessed(7)[6]
	require.Equal(t, int64(101), entry["status"])
	require.Equal(t, "/v1/ws", entry["route"])
	d.reloadWith(func(c *config.Config) { c.Log.Access = 0 })
	d.post("/v1/topics/a/messages", "1")
	sub.Close()
	require.NoError(t, d.wait())
	d.accessed(7)
}

// Behind a proxy, the client is the one that limits count. A request on the lane begins when it
// arrives, also if it waits behind another.
func TestTheAccessLogNamesTheClientBehindAProxy(t *testing.T) {
	asked, let := make(chan struct{}, 3), make(chan struct{}, 3)
	app := newApplication(t, func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-let })
	d := start(t, func(c *config.Config) {
		app.hooked(c)
		c.Log.Access, c.Limit.TrustedProxies = 1, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
	const publish = "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.7\r\nContent-Length: 1\r\n\r\n1"
	let <- struct{}{}
	c.Ask(publish) // by net/http
	<-asked
	c.Send(publish + publish) // by the lane
	<-asked
	released := time.Now()
	let <- struct{}{}
	let <- struct{}{}
	c.Exactly()
	c.Exactly()
	require.NoError(t, d.wait())
	entries := d.logged.FilterLoggerName("access").All()
	require.Len(t, entries, 3)
	for _, e := range entries {
		require.Equal(t, "192.0.2.7", e.ContextMap()["client"])
		require.True(t, e.ContextMap()["begun"].(time.Time).Before(released))
	}
}

// The same entry, again and again, does not fill the disk. The access log has its own sample.
func TestFloodsOfTheLogAreSampled(t *testing.T) {
	d := start(t, func(c *config.Config) { c.Log.Access = 1 })
	const floods = 1000
	for range floods {
		d.log.Warn("again")
	}
	require.Less(t, d.logged.FilterMessage("again").Len(), floods/2)
	c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
	for range floods / 2 {
		c.Ask("POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1")
	}
	require.NoError(t, d.wait())
	require.Equal(t, floods/2, d.logged.FilterLoggerName("access").Len())
}

// A parked poll gets old messages because its session subscribes to another topic. That is no
// slow delivery.
func TestHistoryIsNoSlowDelivery(t *testing.T) {
	for _, lane := range []string{"off", "channel", "handoff"} {
		to := newCollector(t)
		d := start(t, func(c *config.Config) {
			c.Lane, c.Tracing.Endpoint, c.Tracing.Sample, c.Tracing.Slow = lane, to.URL, 0, time.Nanosecond
		})
		d.post("/v1/topics/old/messages", "1")
		id := d.open(`"a"`).Session
		c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
		c.Send("GET /v1/sessions/" + id + "/poll?ack=0 HTTP/1.1\r\nHost: h\r\n\r\n")
		d.waitParked(1)
		r, err := http.NewRequest(http.MethodPatch, "http://"+d.PublicAddr()+"/v1/sessions/"+id, strings.NewReader(`{"add":["old@oldest"]}`))
		require.NoError(t, err)
		resp, err := d.client.Do(r)
		require.NoError(t, err)
		resp.Body.Close()
		_, frames := c.Exactly()
		require.Contains(t, frames, `"old@`)
		require.NoError(t, d.wait())
		require.Empty(t, to.named("deliver"), lane)
	}
}

// A collector takes spans as OpenTelemetry's does.
type collector struct {
	*httptest.Server
	mu    sync.Mutex // guards spans
	spans []*tracepb.Span
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var data tracepb.TracesData
		if r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(body, &data) != nil {
			panic("not OTLP")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, of := range data.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// named returns the spans with a name.
func (c *collector) named(name string) (spans []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name {
			spans = append(spans, s)
		}
	}
	return spans
}

// The trace of a client leads through the publish to the hook and to the log, in memory and on
// disk. A trace that the client does not sample is passed on to the hook as it is.
func TestATraceLeadsThroughTheHookToTheLog(t *testing.T) {
	const client = "0af7651916cd43dd8448eb211c80319c"
	for _, tt := range []struct{ lane, store string }{{"off", ""}, {"handoff", ""}, {"handoff", t.TempDir()}} {
		t.Run(fmt.Sprint(tt.lane, ", on disk: ", tt.store != ""), func(t *testing.T) {
			var mu sync.Mutex
			var asked []string
			app := newApplication(t, func(_ http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, r.Header.Get("traceparent"))
			})
			to := newCollector(t)
			d := start(t, func(c *config.Config) {
				app.hooked(c)
				c.Broker.HookTopics = []string{"asked"}
				c.Lane, c.Store.Dir = tt.lane, tt.store
				c.Tracing.Endpoint, c.Tracing.Sample, c.Tracing.Slow = to.URL, 0, 0
			})
			c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
			send := func(topic, flags string) {
				_, body := c.Ask("POST /v1/topics/" + topic + "/messages HTTP/1.1\r\nHost: h\r\ntraceparent: 00-" + client + "-b7ad6b7169203331-" + flags + "\r\ntracestate: a=b\r\nContent-Length: 1\r\n\r\n1")
				require.Contains(t, body, `"position"`)
			}
			for range 2 {
				send("asked", "01")
				send("free", "01")
				send("asked", "00")
			}
			d.post("/v1/topics/asked/messages", "1") // without a trace
			require.NoError(t, d.wait())

			require.Len(t, asked, 5)
			require.Equal(t, "", asked[4])
			for _, at := range []int{1, 3} {
				require.Equal(t, "00-"+client+"-b7ad6b7169203331-00", asked[at], "the client's own, since it is not traced")
			}
			calls := to.named("publish")
			require.Len(t, calls, 4)
			for _, s := range slices.Concat(calls, to.named("hook publish"), to.named("append")) {
				require.Equal(t, client, fmt.Sprintf("%x", s.TraceId))
				require.GreaterOrEqual(t, s.EndTimeUnixNano, s.StartTimeUnixNano)
				require.Zero(t, s.Status.GetCode(), "no error")
			}
			require.Len(t, to.named("append"), 4)
			hooks := to.named("hook publish")
			require.Len(t, hooks, 2)
			for i, s := range hooks {
				require.Equal(t, fmt.Sprintf("00-%s-%x-01", client, s.SpanId), asked[2*i])
				require.True(t, slices.ContainsFunc(calls, func(of *tracepb.Span) bool { return string(of.SpanId) == string(s.ParentSpanId) }))
			}
		})
	}
}

// Commands that publish, and many messages in one request, are traced as one publish each.
// The trace of the request that opened a WebSocket does not go on in its commands.
func TestCommandsAndManyMessagesAreTraced(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"", t.TempDir()} {
		to := newCollector(t)
		d := start(t, func(c *config.Config) {
			c.Store.Dir, c.Tracing.Endpoint, c.Tracing.Sample, c.Tracing.Slow = store, to.URL, 1, 0
		})
		for _, refused := range []string{"a..b", strings.Repeat("x", 4000)} { // a span with such a topic would spoil its batch
			resp, err := http.Post("http://"+d.PublicAddr()+"/v1/topics/"+refused+"/messages", "application/json", strings.NewReader("1"))
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, http.StatusBadRequest, resp.StatusCode)
		}
		d.post("/v1/messages", `[{"topic":"a","data":1},{"topic":"b","data":2}]`)
		c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
		head, _ := c.Ask("GET /v1/ws?topic=c HTTP/1.1\r\nHost: h\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n" +
			"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		require.Contains(t, head, "101")
		require.NoError(t, wsutil.WriteClientText(c.Conn, []byte(`{"publish":{"topic":"c","data":1},"ref":1}`)))
		d.wantMetric(`pubsubd_calls_total{call="publish",way="command"}`, 1)
		require.NoError(t, d.wait())
		calls := to.named("publish")
		require.Len(t, calls, 2)
		require.Len(t, to.named("append"), 1, "of the command; many messages are appended between calls of the hook")
		require.Empty(t, calls[0].ParentSpanId)
		require.Empty(t, calls[1].ParentSpanId)
		var topics []string
		for _, s := range calls {
			for _, a := range s.Attributes {
				if a.Key == "messaging.destination.name" {
					topics = append(topics, a.Value.GetStringValue())
				}
			}
		}
		require.Equal(t, []string{"c"}, topics, "many messages have many topics")
	}
}

// Without tracing, the application still gets the client's trace.
func TestTheClientsTraceReachesTheApplicationWithoutTracing(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	asked := make(chan http.Header, 3)
	app := newApplication(t, func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header })
	d := start(t, func(c *config.Config) {
		app.hooked(c)
		c.AuthorizeHook.URL, c.AuthorizeHook.Secret = app.URL+"/authorize", hookSecret
	})
	c := lanetest.DialRaw(t, d.PublicAddr(), aMinute)
	with := " HTTP/1.1\r\nHost: h\r\ntraceparent: " + parent + "\r\ntracestate: a=b\r\n"
	c.Ask("POST /v1/topics/a/messages" + with + "Content-Length: 1\r\n\r\n1") // by net/http
	c.Ask("POST /v1/topics/a/messages" + with + "Content-Length: 1\r\n\r\n1") // by the lane
	c.Ask("GET /v1/poll?topic=a@oldest" + with + "\r\n")
	for range 3 {
		h := <-asked
		require.Equal(t, parent, h.Get("traceparent"))
		require.Equal(t, "a=b", h.Get("tracestate"))
	}
}

// Deliveries to clients that wait are traced on every transport, if they take long enough.
func TestSlowDeliveriesAreTraced(t *testing.T) {
	for _, lane := range []string{"off", "channel", "handoff"} {
		t.Run(lane, func(t *testing.T) {
			to := newCollector(t)
			d := start(t, func(c *config.Config) {
				c.Lane, c.Tracing.Endpoint, c.Tracing.Sample, c.Tracing.Slow = lane, to.URL, 0, time.Nanosecond
			})
			client := d.goClient()
			defer client.Close()
			transports := []pubsub.Transport{pubsub.LongPoll, pubsub.HTTPStream, pubsub.SSE, pubsub.WebSocket}
			var subs []*pubsub.Subscription
			for _, transport := range transports {
				sub, err := client.Subscribe(t.Context(), []wire.Start{{Topic: "a"}}, pubsub.WithTransport(transport))
				require.NoError(t, err)
				defer sub.Close()
				subs = append(subs, sub)
			}
			for _, via := range []string{"longpoll", "stream", "sse", "websocket"} {
				d.wantMetric(fmt.Sprintf("pubsubd_polls_parked{transport=%q}", via), 1)
			}
			d.post("/v1/topics/a/messages", "1")
			for _, sub := range subs {
				_, err := sub.Next(t.Context())
				require.NoError(t, err)
				sub.Close()
			}
			require.NoError(t, d.wait())
			var via []string
			for _, s := range to.named("deliver") {
				for _, a := range s.Attributes {
					if a.Key == "pubsubd.transport" {
						via = append(via, a.Value.GetStringValue())
					}
				}
			}
			require.ElementsMatch(t, []string{"longpoll", "stream", "sse", "websocket"}, via)
		})
	}
}
