package pubsub

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// losing serves publishes, and loses the answers to the first n.
func losing(f *fake, n int) *[]time.Time {
	var at []time.Time
	f.script = func(_ http.ResponseWriter, r *http.Request) bool {
		at = append(at, time.Now())
		if len(at) > n {
			return false
		}
		r.SetPathValue("topic", "a")              // the script comes before the mux
		f.servePublish(discard{http.Header{}}, r) // where a lost answer goes
		panic(http.ErrAbortHandler)
	}
	return &at
}

// With a key a publish whose answer is lost is repeated, and published once.
func TestWithAKeyALostAnswerIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		at := losing(f, 2)
		p, err := c.Publish(t.Context(), "a", "text/plain", []byte("once"), WithIdempotencyKey(`k "1"`))
		require.NoError(t, err)
		require.Equal(t, uint64(1), p.Position.Offset)
		require.Len(t, f.topics["a"].messages, 1)
		require.Equal(t, `k "1"`, f.topics["a"].messages[0].ID)
		require.Len(t, *at, 3)
		require.GreaterOrEqual(t, (*at)[1].Sub((*at)[0]), firstBackoff/2, "not at once")
	})
}

// A proxy that had no answer for us leaves it as open as a lost one.
func TestWithAKeyWhatAProxyCouldNotReachIsTriedAgain(t *testing.T) {
	for _, status := range []int{500, 502, 503, 504, 408} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			c := serveFake(t, f)
			calls := 0
			f.script = func(w http.ResponseWriter, _ *http.Request) bool {
				if calls++; calls == 1 {
					w.WriteHeader(status)
				}
				return calls == 1
			}
			_, err := c.Publish(t.Context(), "a", "", []byte("1"), WithIdempotencyKey("k"))
			require.NoError(t, err)
			require.Equal(t, 2, calls)
		})
	}
}

// What was refused, or answered with nonsense, is not mended by trying again.
func TestWithAKeyWhatWaitingDoesNotMendIsNotRepeated(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"the key is another's":     later(wire.CodeIdempotencyMismatch, 100),
		"the body is refused":      later(wire.CodeInvalidBody, 100),
		"the answer is nonsense":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) },
		"a proxy knows no such":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"a proxy wants to be told": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := serveFake(t, f)
				at := answerPublish(f, answer)
				_, err := c.Publish(t.Context(), "a", "", []byte("1"), WithIdempotencyKey("k"))
				require.Error(t, err)
				require.Len(t, *at, 1)
			})
		})
	}
}

// Attempts are bounded by time since the call, and by how long the daemon surely knows the key
// since the first that it may have taken.
func TestWithAKeyTryingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		at := losing(f, 100)
		began := time.Now()
		_, err := c.Publish(t.Context(), "a", "", []byte("1"), WithIdempotencyKey("k"))
		require.ErrorContains(t, err, `publish "a": `)
		require.ErrorIs(t, err, ErrOutcomeUnknown)
		require.Greater(t, len(*at), 5)
		require.LessOrEqual(t, time.Since(began), DefaultPublishRetry)
		require.Len(t, f.topics["a"].messages, 1)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f, WithPublishRetry(time.Hour))
		calls := 0
		f.script = func(w http.ResponseWriter, _ *http.Request) bool {
			if calls++; calls == 1 {
				time.Sleep(safeToRepeat)
			}
			panic(http.ErrAbortHandler)
		}
		_, err := c.Publish(t.Context(), "a", "", []byte("1"), WithIdempotencyKey("k"))
		require.Error(t, err)
		require.Equal(t, 1, calls, "it was on its way for too long")
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f, WithPublishRetry(time.Hour))
		calls := 0
		f.script = func(w http.ResponseWriter, r *http.Request) bool {
			if calls++; calls < 3 {
				later(wire.CodeOverloaded, 2*safeToRepeat.Milliseconds())(w, r)
			}
			return calls < 3
		}
		_, err := c.Publish(t.Context(), "a", "", []byte("1"), WithIdempotencyKey("k"))
		require.NoError(t, err, "what was not taken may wait for as long as the daemon says")
	})
}

// A daemon may forget keys sooner than by default. A client that was told so stops
// repeating sooner.
func TestAKeyIsNotRepeatedAfterTheDaemonsWindow(t *testing.T) {
	for window, want := range map[time.Duration]int{2 * time.Second: 1, 10 * time.Second: 2, time.Hour: 2} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.limits.IdempotencyMS = window.Milliseconds()
			c := serveFake(t, f)
			s, err := c.Subscribe(t.Context(), []wire.Start{FromNow("b")})
			require.NoError(t, err)
			s.Close()
			calls := 0
			f.script = func(http.ResponseWriter, *http.Request) bool {
				if calls++; calls == 1 {
					time.Sleep(2 * time.Second)
					panic(http.ErrAbortHandler)
				}
				return false
			}
			_, err = c.Publish(t.Context(), "a", "", []byte("1"), WithIdempotencyKey("k"))
			require.Equal(t, want == 1, err != nil, "%v", err)
			require.Equal(t, want, calls, window)
		})
	}
}

// Once an answer was lost, a refusal of the next attempt does not mean that nothing
// was published. The daemon's code tells why it did not go on.
func TestARefusalAfterALostAnswerLeavesItOpen(t *testing.T) {
	forbidden := &wire.Problem{Code: wire.CodeForbidden}
	for name, lost := range map[string]bool{"an answer was lost": true, "no connection was made": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := serveFake(t, f)
				calls := 0
				f.script = func(w http.ResponseWriter, r *http.Request) bool {
					if calls++; calls == 1 && lost {
						panic(http.ErrAbortHandler)
					}
					later(wire.CodeForbidden, 0)(w, r)
					return true
				}
				if f.down = !lost; f.down {
					time.AfterFunc(firstBackoff/4, func() { f.set(func() { f.down = false }) })
				}
				_, err := c.Publish(t.Context(), "a", "", []byte("1"), WithIdempotencyKey("k"))
				require.ErrorIs(t, err, forbidden)
				require.Equal(t, lost, errors.Is(err, ErrOutcomeUnknown))
				require.Equal(t, lost, strings.Contains(err.Error(), "; an earlier attempt had no answer: the message may have been published"))
			})
		})
	}
}

// A daemon that restarts refuses connections, and then answers through a proxy.
func TestPublishOutlastsARestart(t *testing.T) {
	for name, options := range map[string][]PublishOption{"with a key": {WithIdempotencyKey("k")}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.down = true
				var told []error
				c := serveFake(t, f, WithPublishRetryNotify(func(err error, _ time.Duration) { told = append(told, err) }))
				time.AfterFunc(10*time.Second, func() { f.set(func() { f.down = false }) })
				_, err := c.Publish(t.Context(), "a", "", []byte("1"), options...)
				require.NoError(t, err)
				require.Len(t, f.topics["a"].messages, 1)
				require.Greater(t, len(told), 3)
			})
		})
	}
}

// net/http repeats a request with an idempotency key by itself when a connection breaks, whenever
// that is. The daemon may have forgotten the key by then.
func TestOnlyTheClientRepeatsAPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		_, err := c.Publish(t.Context(), "a", "", []byte("1")) // the connection is one in use
		require.NoError(t, err)
		calls := 0
		f.script = func(_ http.ResponseWriter, r *http.Request) bool {
			calls++
			holdUp(r, 3*time.Minute)
			panic(http.ErrAbortHandler)
		}
		_, err = c.Publish(t.Context(), "a", "", []byte("1"), WithIdempotencyKey("k"))
		require.ErrorIs(t, err, ErrOutcomeUnknown)
		require.Equal(t, 1, calls)
	})
}

// The wall clock jumps while a publish waits for its next attempt: as after a suspend, or because
// somebody sets it. The window in which the daemon knows the key counts by the larger time.
func TestAKeyIsNotRepeatedAfterASuspend(t *testing.T) {
	for jump, want := range map[time.Duration]int{10 * time.Minute: 1, -10 * time.Minute: 2} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			var wall jumpingClock
			calls := 0
			c := serveFake(t, f, wall.option(), WithPublishRetry(time.Hour), WithPublishRetryNotify(func(error, time.Duration) { wall.jump(jump) }))
			f.script = func(http.ResponseWriter, *http.Request) bool {
				if calls++; calls == 1 {
					panic(http.ErrAbortHandler)
				}
				return false
			}
			_, err := c.Publish(t.Context(), "a", "", []byte("1"), WithIdempotencyKey("k"))
			require.Equal(t, want == 1, errors.Is(err, ErrOutcomeUnknown), "%v", err)
			require.Equal(t, want, calls, jump)
		})
	}
}
