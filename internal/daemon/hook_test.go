package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const hookSecret = "the hook's own secret, hunter2"

// An application is the server that the hook calls. answer is its reply.
type application struct {
	*httptest.Server
	answer  atomic.Pointer[http.HandlerFunc]
	refused atomic.Int32 // requests without a valid signature
}

func newApplication(t *testing.T, answer http.HandlerFunc) *application {
	library, err := webhooks.NewWebhookRaw([]byte(hookSecret))
	require.NoError(t, err)
	app := &application{}
	app.answer.Store(&answer)
	app.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || library.Verify(body, r.Header) != nil {
			app.refused.Add(1)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		(*app.answer.Load())(w, r)
	}))
	t.Cleanup(app.Close)
	return app
}

func (app *application) hooked(c *config.Config) {
	c.PublishHook.URL, c.PublishHook.Secret, c.PublishHook.Timeout = app.URL+"/publish", hookSecret, time.Hour
}

// answers is an application that always answers the same.
func answers(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, body)
	}
}

// An operator adds a hook by a reload, changes its secret, and removes it. Publishers see
// the application's decisions. The log contains no secret.
func TestAHookIsReloaded(t *testing.T) {
	app := newApplication(t, answers(`{"message":{"data":"changed"}}`))
	d := start(t, nil)
	c := d.goClient()
	defer c.Close()
	publish := func() error {
		_, err := c.PublishJSON(t.Context(), "a", "as it was")
		return err
	}
	require.NoError(t, publish())
	d.reloadWith(func(c *config.Config) {
		app.hooked(c)
		c.PublishHook.Calls = 7
	})
	require.NoError(t, publish())
	require.Equal(t, 1.0, d.metric(`pubsubd_hook_calls_total{hook="publish",outcome="changed"}`))
	require.Equal(t, 7.0, d.metric(`pubsubd_limit{limit="hooks.publish"}`))
	_, held := d.get("http://" + d.PublicAddr() + "/v1/topics/a/messages")
	require.Contains(t, held, `"as it was"`)
	require.Contains(t, held, `"changed"`)

	refuses := answers(`{"refuse":{"detail":"not today"}}`)
	app.answer.Store(&refuses)
	require.ErrorContains(t, publish(), "not today")
	d.reloadWith(func(c *config.Config) { c.PublishHook.Secret = strings.ToUpper(hookSecret) })
	require.ErrorIs(t, publish(), &wire.Problem{Code: wire.CodeHookFailed})
	require.Positive(t, app.refused.Load())
	d.reloadWith(func(c *config.Config) { c.Broker.HookTopics = []string{"b.>"} })
	require.NoError(t, publish())
	d.reloadWith(func(c *config.Config) { c.PublishHook.URL = "" })
	require.NoError(t, publish())
	require.Contains(t, d.said("setting changed", "was", "is"), "hooks.publish.secret: (secret) → (secret)")
	require.NoError(t, d.wait())
	d.wantNone([]string{hookSecret, strings.ToUpper(hookSecret)})
}

// An operator adds an authorize hook by a reload, and removes it. Sessions and stateless
// polls see the application's decisions. The log contains no secret.
func TestAnAuthorizeHookIsReloaded(t *testing.T) {
	app := newApplication(t, answers(`{"refuse":{"detail":"not your room"}}`))
	d := start(t, nil)
	const path = "/v1/poll?topic=chat.a@oldest"
	d.post("/v1/topics/chat.a/messages", "1")
	poll := func() string {
		_, answer := d.get("http://" + d.PublicAddr() + path)
		return answer
	}
	require.Contains(t, poll(), `"data":1`)
	d.reloadWith(func(c *config.Config) {
		c.AuthorizeHook.URL, c.AuthorizeHook.Secret, c.AuthorizeHook.Calls = app.URL+"/authorize", hookSecret, 7
		c.AuthorizeHook.Topics = []string{"chat.>"}
	})
	require.Contains(t, poll(), "not your room")
	require.Contains(t, poll(), "not your room")
	require.Equal(t, 2.0, d.metric(`pubsubd_hook_calls_total{hook="authorize",outcome="refused"}`))
	require.Equal(t, 7.0, d.metric(`pubsubd_limit{limit="hooks.authorize"}`))
	agrees := answers("{}")
	app.answer.Store(&agrees)
	for range 3 {
		require.Contains(t, poll(), `"data":1`)
	}
	require.Equal(t, 1.0, d.metric(`pubsubd_hook_calls_total{hook="authorize",outcome="passed"}`))
	require.Equal(t, 2.0, d.metric(`pubsubd_hook_calls_total{hook="authorize",outcome="cached"}`))
	d.reloadWith(func(c *config.Config) { c.AuthorizeHook.Secret = strings.ToUpper(hookSecret) })
	require.Contains(t, poll(), `"hook_failed"`)
	d.reloadWith(func(c *config.Config) { c.AuthorizeHook.URL = "" })
	require.Contains(t, poll(), `"data":1`)
	require.Contains(t, d.said("setting changed", "was", "is"), "hooks.authorize.secret: (secret) → (secret)")
	require.NoError(t, d.wait())
	d.wantNone([]string{hookSecret, strings.ToUpper(hookSecret)})
}

// An application hears of sessions on every transport, and of topics, also of those that
// only stateless polls subscribe to. When the daemon stops, it hears of every end.
func TestAnApplicationHearsOfSessionsAndTopics(t *testing.T) {
	for _, lane := range []string{"handoff", "off"} {
		t.Run(lane, func(t *testing.T) {
			var mu sync.Mutex
			heard := map[string]int{}
			app := newApplication(t, nil)
			hears := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var batch struct {
					Events []struct{ Type, Topic, Reason string }
				}
				_ = json.NewDecoder(r.Body).Decode(&batch)
				mu.Lock()
				defer mu.Unlock()
				for _, e := range batch.Events {
					heard[strings.TrimSpace(e.Type+" "+e.Topic+e.Reason)]++
				}
			})
			app.answer.Store(&hears)
			wantHeard := func(want int, what string) {
				t.Helper()
				require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return heard[what] == want }, surely, 10*time.Millisecond, what)
			}
			d := start(t, func(c *config.Config) {
				c.Lane, c.EventsHook.URL, c.EventsHook.Secret = lane, app.URL+"/events", hookSecret
				c.EventsHook.Topics, c.EventsHook.Delay, c.EventsHook.Grace = []string{"chat.*"}, time.Millisecond, time.Hour
			})
			d.post("/v1/topics/chat.a/messages", "1")
			for range 3 {
				d.get("http://" + d.PublicAddr() + "/v1/poll?topic=chat.a@oldest&topic=other@oldest")
			}
			wantHeard(1, "topic_occupied chat.a")
			for i, way := range []pubsub.Transport{pubsub.WebSocket, pubsub.HTTPStream, pubsub.LongPoll} {
				c := d.goClient()
				t.Cleanup(c.Close)
				_, err := c.Subscribe(t.Context(), []wire.Start{pubsub.FromNow(fmt.Sprint("chat.", i))}, pubsub.WithTransport(way))
				require.NoError(t, err)
				wantHeard(1, fmt.Sprint("topic_occupied chat.", i))
				wantHeard(i+1, "session_opened")
			}
			require.NoError(t, d.wait())
			wantHeard(3, "session_ended draining")
			for _, topic := range []string{"a", "0", "1", "2"} {
				wantHeard(1, "topic_vacated chat."+topic)
			}
			require.Zero(t, heard["topic_occupied other"])
			d.wantNone([]string{hookSecret})
		})
	}
}

// goClient returns a client that does not retry a publish.
func (d *running) goClient() *pubsub.Client {
	c, err := pubsub.New("http://"+d.PublicAddr(), pubsub.WithPublishRetry(0))
	require.NoError(d, err)
	return c
}

// A slow application fills only the hook's own gate. A publish that gets no slot in time
// is refused, and topics without the hook are not affected.
func TestASlowHookDelaysNoOtherTopic(t *testing.T) {
	for _, lane := range []string{"handoff", "off"} {
		t.Run(lane, func(t *testing.T) {
			let := make(chan struct{})
			app := newApplication(t, func(http.ResponseWriter, *http.Request) { <-let })
			d := start(t, func(c *config.Config) {
				app.hooked(c)
				c.Lane, c.Broker.HookTopics, c.PublishHook.Calls = lane, []string{"slow.*"}, 2
				c.Limit.Wait = 50 * time.Millisecond
			})
			c := d.goClient()
			defer c.Close()
			over := make(chan error)
			for n := range 2 {
				go func() {
					_, err := c.PublishJSON(t.Context(), fmt.Sprint("slow.", n), 1)
					over <- err
				}()
			}
			require.Eventually(t, func() bool { return d.metric(`pubsubd_in_use{limit="hooks.publish"}`) == 2 }, surely, 10*time.Millisecond)
			_, err := c.PublishJSON(t.Context(), "slow.c", 1)
			require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
			_, err = c.PublishJSON(t.Context(), "fast", 1)
			require.NoError(t, err)
			close(let)
			require.NoError(t, <-over)
			require.NoError(t, <-over)
			require.Equal(t, 1.0, d.metric(`pubsubd_hook_calls_total{hook="publish",outcome="overloaded"}`))
			require.Equal(t, 1.0, d.metric(`pubsubd_limited_total{limit="hooks.publish"}`))
		})
	}
}

// A drain waits for the application, but no longer than the drain window.
func TestADrainEndsHookCalls(t *testing.T) {
	for _, window := range []time.Duration{50 * time.Millisecond, time.Minute} {
		t.Run(window.String(), func(t *testing.T) {
			let := make(chan struct{})
			asked := make(chan struct{}, 1)
			app := newApplication(t, func(http.ResponseWriter, *http.Request) {
				asked <- struct{}{}
				<-let
			})
			d := start(t, func(c *config.Config) {
				app.hooked(c)
				c.DrainWindow = window
			})
			c := d.goClient()
			defer c.Close()
			over := make(chan error)
			go func() {
				_, err := c.PublishJSON(t.Context(), "a", 1)
				over <- err
			}()
			<-asked
			d.stop()
			if window > time.Second {
				require.Eventually(t, func() bool { return d.whyNotReady() == "draining" }, surely, 10*time.Millisecond)
				close(let)
				require.NoError(t, <-over)
				require.NoError(t, d.wait())
				return
			}
			require.NoError(t, d.wait())
			require.Error(t, <-over)
			close(let)
		})
	}
}

// After a client that sent many messages has left, the hook is called for at most one more.
// The others hold no slot.
func TestNoHookCallForAClientThatHasLeft(t *testing.T) {
	var asked atomic.Int32
	let, over := make(chan struct{}), make(chan struct{})
	app := newApplication(t, func(http.ResponseWriter, *http.Request) {
		asked.Add(1)
		select {
		case <-let:
		case <-over:
		}
	})
	d := start(t, func(c *config.Config) {
		app.hooked(c)
		c.Limit.Calls = 1
	})
	t.Cleanup(func() { close(over) })
	conn, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(t, err)
	const many = 1000
	body := "[" + strings.Repeat(`{"topic":"a","data":1},`, many-1) + `{"topic":"a","data":1}]`
	fmt.Fprintf(conn, "POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.Eventually(t, func() bool { return asked.Load() == 1 }, surely, 10*time.Millisecond)
	require.NoError(t, conn.Close())
	quiet := 0                          // checks in a row; between two messages no slot is in use, either
	require.Eventually(t, func() bool { // one message for each check: even a slow daemon then notices that the client left
		quiet++
		select {
		case let <- struct{}{}:
			quiet = 0
		default:
		}
		if d.metric(`pubsubd_in_use{limit="calls"}`) != 0 {
			quiet = 0
		}
		return quiet == 5
	}, surely, 10*time.Millisecond)
	require.Less(t, asked.Load(), int32(many/2))
	require.Zero(t, d.metric(`pubsubd_requests_refused_total{code="internal"}`))
}

// The rest is for calls without a hook.
func TestCallsThatWaitForHooksLeaveSlots(t *testing.T) {
	for _, c := range []struct{ calls, waiting, publish, authorize int }{{16, 1000, 8, 4}, {1, 1000, 1, 1}, {16, 3, 3, 3}} {
		publish, authorize := hookWaiting(limit.Config{Calls: c.calls, WaitingCalls: c.waiting})
		require.Equal(t, c.publish, publish)
		require.Equal(t, c.authorize, authorize)
	}
}

// If the hook may take all slots, the log warns at the start and after each reload. The
// daemon serves nevertheless.
func TestTheLogWarnsOfAHookWithAllSlots(t *testing.T) {
	app := newApplication(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	d := start(t, func(c *config.Config) {
		app.hooked(c)
		c.PublishHook.Calls, c.Limit.Calls = 5, 5
	})
	warned := func() int {
		return d.logged.FilterLevelExact(zapcore.WarnLevel).FilterMessageSnippet("hooks.publish.calls is 5, not less than limits.calls").Len()
	}
	require.Equal(t, 1, warned())
	d.post("/v1/topics/a/messages", "1")
	d.reloadWith(func(*config.Config) {})
	require.Equal(t, 2, warned())
	d.reloadWith(func(c *config.Config) { c.Limit.Calls = 6 })
	require.Equal(t, 2, warned(), "one is left to others")
}
