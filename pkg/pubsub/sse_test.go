package pubsub

import (
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Events are asked for by a URL alone, and that is bounded.
func TestTheTopicsOfEventsMustFitAURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		many := manyStarts(500)
		_, err := c.Subscribe(t.Context(), many, WithTransport(SSE))
		require.ErrorContains(t, err, "use another")

		s := subscribe(t, c, many[:100], WithTransport(SSE))
		_, err = s.Change(t.Context(), many[100:], nil)
		require.ErrorContains(t, err, "use another")
		require.Len(t, s.Positions(), 100, "all is as it was")
		f.publish("topic.number-7", 1)
		wantNext(t, s, "topic.number-7@k3:1")
		require.Len(t, f.seen(), 1)
	})
}

func TestWhatAnEventStreamIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		var asked url.Values
		f.script = func(_ http.ResponseWriter, r *http.Request) bool {
			asked = r.URL.Query()
			return false
		}
		starts := []wire.Start{Paced(FromNow("a"), 200*time.Millisecond), Paced(FromOldest("b"), 200*time.Millisecond)}
		s := subscribe(t, c, starts, WithTransport(SSE), WithoutOwn("tab:7"))
		delete(asked, "r")
		require.Equal(t, url.Values{"topic": {"a", "b@oldest"}, "max_rate": {"1/200ms"}, "client": {"tab:7"}, "echo": {"false"}}, asked)

		_, err := s.Change(t.Context(), []wire.Start{FromNow("c")}, nil)
		require.ErrorIs(t, err, errPaces)
		_, err = c.Subscribe(t.Context(), nil, WithTransport(SSE))
		require.ErrorIs(t, err, errNoTopics)
	})
}

// A change of events is asked for once: its answer begins at once, and tells.
func TestAChangeOfEventsIsOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish("b", 1)
		var asked []string
		f.script = func(_ http.ResponseWriter, r *http.Request) bool {
			f.set(func() { asked = append(asked, r.URL.Path) })
			return false
		}
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithTransport(SSE))
		wantChange(t, s, []wire.Start{FromPosition(position(t, "b@k3:0"))}, nil, "b@k3:0")
		wantNext(t, s, "b@k3:1")
		f.set(func() { require.Equal(t, []string{"/v1/sse", "/v1/sse"}, asked) })
	})
}

// The daemon says "later" in an event, since a browser would take a status for "never".
func TestAnEndWithoutAHelloIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		times := 0
		f.script = func(w http.ResponseWriter, _ *http.Request) bool {
			if times++; times > 1 {
				return false
			}
			w.Header().Set("Content-Type", "text/event-stream")
			overloaded := problem.New(wire.CodeOverloaded, "", "too much")
			overloaded.RetryAfterMS = 7_000
			_, _ = w.Write(encodeEvent(wire.Content{End: overloaded}))
			return true
		}
		began := time.Now()
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithTransport(SSE))
		require.Equal(t, 7*time.Second, time.Since(began))
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
	})
}
