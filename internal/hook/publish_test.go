package hook

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const secret = "a secret of more than 24 bytes"

// A desk is a hook and its application, whose answer a test sets.
type desk struct {
	*testing.T
	*Publishes
	cfg    Config
	answer atomic.Pointer[http.HandlerFunc]
	asked  atomic.Pointer[string] // the newest body
	logged *observer.ObservedLogs
	all    *metrics.Metrics
}

func newDesk(t *testing.T, cfg Config) *desk {
	core, logged := observer.New(zap.DebugLevel)
	d := &desk{T: t, cfg: cfg, logged: logged, all: metrics.New("test")}
	app := httptest.NewServer(d)
	d.cfg.URL, d.cfg.Secret = app.URL+"/hook?token=query-secret", secret
	d.cfg.Timeout = cmp.Or(cfg.Timeout, time.Minute) // enough for a busy machine
	d.Publishes = NewPublishes(d.cfg, free{}, d.all, zap.New(core))
	t.Cleanup(func() {
		d.Close()
		app.Close()
	})
	return d
}

// ServeHTTP is the application. It rejects requests without a valid signature.
func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	library, badSecret := webhooks.NewWebhookRaw([]byte(secret))
	if err != nil || badSecret != nil || library.Verify(body, r.Header) != nil {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	d.asked.Store(new(string(body)))
	(*d.answer.Load())(w, r)
}

func (d *desk) answers(f http.HandlerFunc) { d.answer.Store(&f) }

// says returns an application that always sends one answer.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func message(topic string) *wire.Message {
	return &wire.Message{Position: wire.Position{Topic: topic}, Data: []byte(`{"n":1}`), Client: "c", ID: "k"}
}

// publish asks about a message, and returns the changed one.
func (d *desk) publish(topic string) (taken *wire.PublishItem, err error) {
	err = d.Publish(d.Context(), Principal{Subject: "ann"}, message(topic), 0, func(item *wire.PublishItem) error {
		taken = item
		return nil
	})
	return taken, err
}

// wantCalls checks the number of calls with the outcome.
func (d *desk) wantCalls(outcome string, want int) {
	d.Helper()
	require.Equal(d, want, called(d.T, d.all, wire.HookPublish, outcome), outcome)
}

func called(t *testing.T, m *metrics.Metrics, hook, outcome string) int {
	families, err := m.Registry.Gather()
	require.NoError(t, err)
	n := 0.0
	for _, f := range families {
		for _, sample := range f.GetMetric() {
			if l := sample.GetLabel(); f.GetName() == "pubsubd_hook_calls_total" && l[0].GetValue() == hook && l[1].GetValue() == outcome {
				n += sample.GetCounter().GetValue()
			}
		}
	}
	return int(n)
}

// free has slots without a bound.
type free struct{}

func (free) Enter(context.Context, *memory.Client) error { return nil }
func (free) Leave()                                      {}

func TestAnApplicationPassesAMessage(t *testing.T) {
	d := newDesk(t, Config{})
	for _, answer := range []http.HandlerFunc{says(http.StatusNoContent, ""), says(http.StatusOK, ""), says(http.StatusOK, "{}\n")} {
		d.answers(answer)
		taken, err := d.publish("a")
		require.NoError(t, err)
		require.Nil(t, taken)
	}
	require.JSONEq(t, `{"type":"publish","topic":"a","principal":"ann","message":{"id":"k","client":"c","data":{"n":1}}}`, *d.asked.Load())
	d.wantCalls(passed, 3)
}

func TestAnApplicationChangesAMessage(t *testing.T) {
	d := newDesk(t, Config{})
	d.answers(says(200, `{"message":{"data":{"n":2},"key":"x","ttl":5}}`))
	taken, err := d.publish("a")
	require.NoError(t, err)
	require.Equal(t, &wire.PublishItem{Data: json.RawMessage(`{"n":2}`), Key: "x", TTL: new(uint64(5))}, taken)

	d.answers(says(200, `{"message":{"topic":"a","id":"k","client":"c","type":"text/plain","text":""}}`))
	taken, err = d.publish("a")
	require.NoError(t, err, "unchanged members may be repeated")
	require.Equal(t, "text/plain", taken.Type)
	d.wantCalls(changed, 2)
}

func TestAnApplicationRefusesAMessage(t *testing.T) {
	d := newDesk(t, Config{})
	for body, want := range map[string]string{
		`{"refuse":{"detail":"no \"%s\" here"}}`: `no "%s" here`,
		`{"refuse":{}}`:                          "the application refuses the message",
		`{"refuse":{"detail":"` + strings.Repeat("ü", 2*maxDetail) + `"}}`: strings.Repeat("ü", maxDetail),
	} {
		d.answers(says(200, body))
		_, err := d.publish("a")
		problem, ok := errors.AsType[*wire.Problem](err)
		require.True(t, ok)
		require.Equal(t, wire.CodeForbidden, problem.Code)
		require.Equal(t, want, problem.Detail)
	}
	d.wantCalls(refused, 3)
}

// wantFailed checks that err tells the publisher to retry, and contains nothing about the
// application.
func wantFailed(t *testing.T, err error) {
	t.Helper()
	problem, ok := errors.AsType[*wire.Problem](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, wire.CodeHookFailed, problem.Code)
	require.Equal(t, http.StatusServiceUnavailable, problem.Status)
	require.Equal(t, int64(1000), problem.RetryAfterMS)
	require.Contains(t, []string{"the application did not give a valid answer", "the application did not answer in time"}, problem.Detail)
}

// If an answer is not valid, nothing is published. Only the log has the reason.
func TestAnInvalidAnswerFails(t *testing.T) {
	d := newDesk(t, Config{MessageBytes: 1000})
	wrong := map[string]http.HandlerFunc{
		"an error":           says(500, `{}`),
		"another success":    says(202, ""),
		"a redirect":         func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", 307) },
		"no JSON":            says(200, "ok"),
		"a member not known": says(200, `{"refused":true}`),
		"another topic":      says(200, `{"message":{"topic":"b","data":1}}`),
		"another client":     says(200, `{"message":{"client":"d","data":1}}`),
		"another id":         says(200, `{"message":{"id":"l","data":1}}`),
		"too much":           says(200, `{"message":{"data":"`+strings.Repeat("x", 70_000)+`"}}`),
		"an endless answer": func(w http.ResponseWriter, _ *http.Request) {
			for err := error(nil); err == nil; _, err = io.WriteString(w, strings.Repeat(" ", 10_000)) {
			}
		},
		"no end of heads": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 40_000)) },
		"half an answer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = w.Write([]byte("{}"))
		},
		"no answer":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"an upgrade": says(101, ""),
	}
	for name, answer := range wrong {
		d.answers(answer)
		taken, err := d.publish("a")
		require.Nil(t, taken, name)
		require.Error(t, err, name)
		wantFailed(t, err)
	}
	d.wantCalls(failed, len(wrong))
	require.Len(t, d.logged.FilterMessage("the publish hook failed").All(), len(wrong))
	for _, e := range d.logged.All() {
		require.NotContains(t, fmt.Sprint(e.Message, e.ContextMap()), "secret")
	}
}

// A changed message that cannot be published is a fault of the application.
func TestAnInvalidChangeFails(t *testing.T) {
	d := newDesk(t, Config{})
	d.answers(says(200, `{"message":{"data":1}}`))
	err := d.Publish(t.Context(), Principal{}, message("a"), 0, func(*wire.PublishItem) error {
		return problem.New(wire.CodeMessageTooLarge, "", "too large")
	})
	wantFailed(t, err)
	d.wantCalls(failed, 1)
}

func TestWithoutAnApplicationMessagesPass(t *testing.T) {
	d := newDesk(t, Config{})
	d.answers(says(500, ""))
	d.Reload(Config{})
	_, err := d.publish("chat.a")
	require.NoError(t, err)
	d.Reload(d.cfg)
	_, err = d.publish("chat.a")
	require.Error(t, err)
}

// Consecutive calls share a connection, also after a reload without a change.
func TestConnectionsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // net/http closes a connection if writing the request takes long
		cfg := Config{URL: "http://app/", Secret: secret}
		connections := 0
		h := NewPublishes(cfg, free{}, metrics.New("test"), zap.NewNop())
		h.dial = func(context.Context, string, string) (net.Conn, error) {
			connections++
			here, there := net.Pipe()
			go consent(there)
			return here, nil
		}
		defer h.Close()
		wantConnections := func(want int) {
			t.Helper()
			require.NoError(t, h.Publish(t.Context(), Principal{}, message("a"), 0, nil))
			require.Equal(t, want, connections)
		}
		wantConnections(1)
		wantConnections(1)
		h.Reload(cfg)
		wantConnections(1)
		cfg.Calls = 7
		h.Reload(cfg)
		wantConnections(2)
		cfg.Secret = "another secret of 24 bytes or more"
		h.Reload(cfg)
		wantConnections(3)
	})
}

// consent is an application on one connection that passes every message.
func consent(c net.Conn) { consentTo(c, func() {}) }

// consentTo is consent. It calls asked for each request.
func consentTo(c net.Conn, asked func()) {
	defer c.Close()
	requests := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		asked()
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
	}
}

// The application rejects a signature with another secret.
func TestAReloadUsesTheNewSecret(t *testing.T) {
	d := newDesk(t, Config{})
	d.answers(says(http.StatusNoContent, ""))
	_, err := d.publish("a")
	require.NoError(t, err)
	d.cfg.Secret = "another secret of 24 bytes or more"
	d.Reload(d.cfg)
	_, err = d.publish("a")
	wantFailed(t, err)
}

// few has a few slots, without a queue.
type few chan struct{}

func (f few) Enter(ctx context.Context, _ *memory.Client) error {
	select {
	case f <- struct{}{}:
		return nil
	default:
		return problem.New(wire.CodeOverloaded, "later", "no slot")
	}
}

func (f few) Leave() { <-f }

// newStage returns a hook and its metrics. Its application, in memory, never answers.
func newStage(cfg Config, slots Slots) (*Publishes, *metrics.Metrics) {
	cfg.URL, cfg.Secret = "http://app/", secret
	m := metrics.New("test")
	h := NewPublishes(cfg, slots, m, zap.NewNop())
	h.dial = func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		return here, nil
	}
	return h, m
}

func TestAnApplicationThatDoesNotAnswerInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, m := newStage(Config{}, free{})
		defer h.Close()
		begun := time.Now()
		wantFailed(t, h.Publish(t.Context(), Principal{}, message("a"), 0, nil))
		require.Equal(t, DefaultTimeout, time.Since(begun))
		require.Equal(t, 1, called(t, m, wire.HookPublish, timeout))
	})
}

// Without a free slot there is no call. A call frees its slot at the end.
func TestNoMoreCallsThanSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := make(few, 2)
		h, m := newStage(Config{}, slots)
		defer h.Close()
		over := make(chan error)
		for range 2 {
			go func() { over <- h.Publish(t.Context(), Principal{}, message("a"), 0, nil) }()
		}
		synctest.Wait()
		err := h.Publish(t.Context(), Principal{}, message("a"), 0, nil)
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
		require.Equal(t, 1, called(t, m, wire.HookPublish, overloaded))
		for range 2 {
			wantFailed(t, <-over)
		}
		require.Empty(t, slots)
	})
}

// A call continues after its publisher has left: the answer still counts. Only Close ends
// it.
func TestOnlyTheDaemonEndsACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, m := newStage(Config{Timeout: time.Hour}, free{})
		ctx, leave := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- h.Publish(ctx, Principal{}, message("a"), 0, nil) }()
		synctest.Wait()
		leave()
		time.Sleep(time.Minute)
		require.Empty(t, over)
		h.Close()
		wantFailed(t, <-over)
		wantFailed(t, h.Publish(t.Context(), Principal{}, message("a"), 0, nil))
		require.Equal(t, 2, called(t, m, wire.HookPublish, failed))
	})
}

// If the publisher has left before the call, there is no call, even if a slot is free. A
// request with many messages would make many calls for nothing.
func TestAPublisherThatHasLeftCausesNoCall(t *testing.T) {
	d := newDesk(t, Config{})
	d.answers(says(200, ""))
	ctx, leave := context.WithCancel(t.Context())
	leave()
	require.ErrorIs(t, d.Publish(ctx, Principal{}, message("a"), 0, nil), context.Canceled)
	require.Nil(t, d.asked.Load())
}

// Failures of an unreachable application are logged, but not once for each publish.
func TestFailuresDoNotFloodTheLog(t *testing.T) {
	d := newDesk(t, Config{})
	d.answers(says(500, ""))
	for range 200 {
		_, err := d.publish("a")
		wantFailed(t, err)
	}
	require.GreaterOrEqual(t, d.logged.Len(), loggedAtFirst)
	require.Less(t, d.logged.Len(), 100)
	d.wantCalls(failed, 200)
}

// The machine of the application is unreachable, so connecting takes as long as the kernel
// tries. Once it is reachable again, calls succeed.
func TestAnApplicationThatIsReachableAgainIsAsked(t *testing.T) {
	d := newDesk(t, Config{Calls: 2, Timeout: 100 * time.Millisecond})
	d.answers(says(http.StatusOK, "{}"))
	var away atomic.Bool
	away.Store(true)
	h := NewPublishes(d.cfg, free{}, metrics.New("test"), zap.NewNop())
	h.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if away.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	defer h.Close()
	ask := func() error {
		return h.Publish(t.Context(), Principal{}, message("a"), 0, func(*wire.PublishItem) error { return nil })
	}
	for range 3 {
		require.Error(t, ask())
	}
	away.Store(false)
	require.Eventually(t, func() bool { return ask() == nil }, 30*time.Second, time.Millisecond)
}

// The application accepts connections, but sends no TLS handshake. The connections are
// closed, since their number is bounded.
func TestAConnectionWithoutAHandshakeIsClosed(t *testing.T) {
	d := newDesk(t, Config{Calls: 1, Timeout: 100 * time.Millisecond})
	d.cfg.URL = "https://127.0.0.1/"
	near, far := net.Pipe()
	require.NoError(t, far.SetReadDeadline(time.Now().Add(30*time.Second)))
	h := NewPublishes(d.cfg, free{}, metrics.New("test"), zap.NewNop())
	h.dial = func(context.Context, string, string) (net.Conn, error) { return near, nil }
	defer h.Close()
	require.Error(t, h.Publish(t.Context(), Principal{}, message("a"), 0, func(*wire.PublishItem) error { return nil }))
	_, err := io.Copy(io.Discard, far)
	require.NoError(t, err)
}
