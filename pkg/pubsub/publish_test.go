package pubsub

import (
	"context"
	"errors"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		var query string
		f.script = func(_ http.ResponseWriter, r *http.Request) bool { query = r.URL.RawQuery; return false }

		p, err := c.PublishJSON(t.Context(), "a.b", map[string]int{"n": 1})
		require.NoError(t, err)
		require.Equal(t, "a.b@k3:1", p.Position.String())
		require.Equal(t, int64(1_700_000_000_000), p.Time)
		require.Empty(t, query)

		_, err = c.Publish(t.Context(), "a.b", "text/plain", []byte("hi"), WithTTL(90*time.Second), WithKey("k&y"), WithClient("c:1"))
		require.NoError(t, err)
		require.Equal(t, "client=c%3A1&key=k%26y&ttl=90", query)
		_, err = c.Publish(t.Context(), "a.b", "", []byte("[1]"))
		require.NoError(t, err)
		_, err = c.Publish(t.Context(), "a.b", "image/png", nil)
		require.NoError(t, err)

		held := f.topics["a.b"].messages
		require.Len(t, held, 4)
		require.Equal(t, `{"n":1}`, string(held[0].Data))
		require.Empty(t, held[0].Type)
		require.Equal(t, "text/plain", held[1].Type)
		require.Equal(t, "k&y", held[1].Key)
		require.Empty(t, held[2].Type, "no type is JSON")
		require.Empty(t, held[3].Data)
	})
}

func TestPublishRefusesWhatCannotWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		_, err := c.Publish(t.Context(), "a..b", "", nil)
		require.ErrorContains(t, err, `publish "a..b": `)
		for _, ttl := range []time.Duration{0, -time.Second, time.Millisecond, 1500 * time.Millisecond} {
			_, err = c.Publish(t.Context(), "a", "", nil, WithTTL(ttl))
			require.ErrorContains(t, err, "whole seconds")
		}
		_, err = c.Publish(t.Context(), "a", "", nil, WithClient("a b"))
		require.ErrorContains(t, err, "client's id")
		_, err = c.Publish(t.Context(), "a", "", nil, WithIdempotencyKey(""))
		require.ErrorContains(t, err, "idempotency key")
		_, err = c.PublishJSON(t.Context(), "a", math.Inf(1))
		require.ErrorContains(t, err, `publish "a": `)
		require.Empty(t, f.topics)
	})
}

// answerPublish answers every publish in the daemon's place, and counts them.
func answerPublish(f *fake, answer http.HandlerFunc) *[]time.Time {
	var at []time.Time
	f.script = func(w http.ResponseWriter, r *http.Request) bool {
		at = append(at, time.Now())
		answer(w, r)
		return true
	}
	return &at
}

func later(code wire.Code, retryAfterMS int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		p := problem.New(code, "", "later")
		p.RetryAfterMS = retryAfterMS
		refuse(w, p)
	}
}

func TestPublishTriesAgainWhenTheDaemonSaysLater(t *testing.T) {
	for _, code := range []wire.Code{wire.CodeOverloaded, wire.CodeLimited, wire.CodeDraining} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			c := serveFake(t, f)
			at := []time.Time{}
			f.script = func(w http.ResponseWriter, r *http.Request) bool {
				if at = append(at, time.Now()); len(at) == 3 {
					return false
				}
				later(code, 700)(w, r)
				return true
			}
			p, err := c.Publish(t.Context(), "a", "text/plain", []byte("once"))
			require.NoError(t, err)
			require.Equal(t, uint64(1), p.Position.Offset)
			require.Equal(t, "once", string(f.topics["a"].messages[0].Data), "the body is whole each time")
			require.Equal(t, 1400*time.Millisecond, at[2].Sub(at[0]))
		})
	}
}

func TestPublishStopsTrying(t *testing.T) {
	overloaded := &wire.Problem{Code: wire.CodeOverloaded}
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		at := answerPublish(f, later(wire.CodeOverloaded, 1000))
		began := time.Now()
		_, err := c.Publish(t.Context(), "a", "", []byte("1"))
		require.ErrorIs(t, err, overloaded)
		require.NotErrorIs(t, err, ErrOutcomeUnknown)
		require.ErrorContains(t, err, `publish "a": overloaded`)
		require.Greater(t, len(*at), 4)
		require.LessOrEqual(t, time.Since(began), DefaultPublishRetry)
		require.Greater(t, time.Since(began), DefaultPublishRetry-DefaultMaxBackoff)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f, WithPublishRetry(0))
		at := answerPublish(f, later(wire.CodeOverloaded, 1000))
		_, err := c.Publish(t.Context(), "a", "", []byte("1"))
		require.ErrorIs(t, err, overloaded)
		require.Len(t, *at, 1)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		at := answerPublish(f, later(wire.CodeOverloaded, 60_000))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		began := time.Now()
		_, err := c.Publish(ctx, "a", "", []byte("1"))
		require.ErrorIs(t, err, overloaded)
		require.Len(t, *at, 1)
		require.Zero(t, time.Since(began), "no wait for what the context will not see")
	})
}

// Nothing that leaves the outcome open, or that waiting does not mend, is repeated.
func TestPublishIsNotRepeated(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"the answer is lost": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"the answer is cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"posi`))
			panic(http.ErrAbortHandler)
		},
		"the answer is nonsense":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) },
		"the daemon fails":         later(wire.CodeInternal, 100),
		"the body is refused":      later(wire.CodeInvalidBody, 100),
		"a proxy's word, not ours": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "1"); w.WriteHeader(503) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := serveFake(t, f)
				published, err := c.Publish(t.Context(), "warm", "", []byte("1")) // the connection is one in use
				require.NoError(t, err, published)
				at := answerPublish(f, answer)
				_, err = c.Publish(t.Context(), "a", "", []byte("1"))
				require.ErrorContains(t, err, `publish "a": `)
				require.Equal(t, name != "the body is refused", errors.Is(err, ErrOutcomeUnknown), "%v", err)
				require.Len(t, *at, 1)
			})
		})
	}
}

func TestPublishIsBoundedByItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.script = hang
		c := serveFake(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := c.Publish(ctx, "a", "", []byte("1"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
