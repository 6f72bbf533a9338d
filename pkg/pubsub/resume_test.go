package pubsub

import (
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A waits keeps what WithRetryNotify was told.
type waits struct {
	mu    sync.Mutex
	errs  []error
	waits []time.Duration
}

func (w *waits) seen() ([]error, []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.errs), slices.Clone(w.waits)
}

func (w *waits) notify() SubscribeOption {
	return WithRetryNotify(func(err error, wait time.Duration) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.errs = append(w.errs, err)
		w.waits = append(w.waits, wait)
	})
}

func TestAnUnreachableDaemonIsTriedForEverAtBoundedIntervals(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f, WithMaxBackoff(3*time.Second))
		var waited waits
		s := subscribe(t, c, []wire.Start{FromNow("a")}, append(w.options, waited.notify())...)
		synctest.Wait()
		f.goDown()
		time.Sleep(10 * time.Minute)
		_, all := waited.seen()
		n := len(all)
		require.Greater(t, n, 600/3, "it goes on trying")
		require.Less(t, n, 600, "and is in no hurry")
		for _, wait := range all[10:] {
			require.GreaterOrEqual(t, wait, 1500*time.Millisecond)
			require.LessOrEqual(t, wait, 3*time.Second)
		}

		f.set(func() { f.down, f.script = false, nil })
		f.publish("a", 2)
		wantNext(t, s, "a@k3:1", "a@k3:2")
		wantQuiet(t, s)
	})
}

func TestRetryAfterIsHonoured(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		overloaded := problem.New(wire.CodeOverloaded, "", "too much")
		overloaded.RetryAfterMS = 42_000
		times := refuseOnce(f, func(r *http.Request) bool { return r.Method != http.MethodDelete }, overloaded)
		var waited waits
		began := time.Now()
		s := subscribe(t, c, []wire.Start{FromNow("a")}, append(w.options, waited.notify(), WithOpenTimeout(0))...)
		require.Equal(t, 1, *times)
		errs, all := waited.seen()
		require.Equal(t, []time.Duration{42 * time.Second}, all)
		require.Equal(t, 42*time.Second, time.Since(began))
		require.ErrorIs(t, errs[0], overloaded)
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
	})
}

func TestADaemonThatDrainsIsLeftAsItAsks(t *testing.T) {
	for _, mode := range []Mode{Batch, Stream} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := serveFake(t, f)
				draining := problem.New(wire.CodeDraining, "", "going away")
				draining.RetryAfterMS = 7_000
				drained := false
				f.script = func(w http.ResponseWriter, r *http.Request) bool {
					if drained || r.Method != http.MethodGet {
						return false
					}
					drained = true
					if mode == Batch {
						refuse(w, draining)
						return true
					}
					w.Header().Set("Content-Type", "application/x-ndjson")
					_, _ = w.Write(line(wire.Content{Hello: &wire.Hello{}}))
					_, _ = w.Write(line(wire.Content{End: draining}))
					return true
				}
				var waited waits
				s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(mode), waited.notify())
				f.publish("a", 1)
				wantNext(t, s, "a@k3:1")
				_, all := waited.seen()
				require.Equal(t, []time.Duration{7 * time.Second}, all)
				require.Equal(t, 2, f.opened)
			})
		})
	}
}

func TestSubscribeGivesUpAfterItsOpenTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.down = true
		c := serveFake(t, f)
		began := time.Now()
		_, err := c.Subscribe(t.Context(), []wire.Start{FromNow("a")}, WithMode(Batch))
		require.ErrorContains(t, err, "connection refused")
		require.ErrorIs(t, err, errOpenTimeout)
		require.Equal(t, DefaultOpenTimeout, time.Since(began))
	})
}

// A daemon that accepts and says nothing does not hold Subscribe for ever.
func TestSubscribeToASilentDaemonIsBounded(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		f.script = hang
		c := serveFake(t, f)
		began := time.Now()
		_, err := c.Subscribe(t.Context(), []wire.Start{FromNow("a")}, append(w.options, WithOpenTimeout(time.Minute))...)
		require.ErrorIs(t, err, errOpenTimeout)
		require.Equal(t, time.Minute, time.Since(began))
	})
}

// What waiting does not mend is told at once, at the opening and later.
func TestARefusalEndsTheSubscription(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		unauthorized := problem.New(wire.CodeUnauthorized, "", "who are you?")
		always := func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodDelete {
				return false
			}
			refuse(w, unauthorized)
			return true
		}
		f.script = always
		began := time.Now()
		_, err := c.Subscribe(t.Context(), []wire.Start{FromNow("a")}, w.options...)
		require.ErrorIs(t, err, unauthorized)
		require.Zero(t, time.Since(began))

		f.set(func() { f.script = nil })
		f.publish("a", 2)
		s := subscribe(t, c, []wire.Start{FromOldest("a")}, w.options...)
		synctest.Wait()
		f.set(func() { f.script = always })
		f.breakOff()
		wantNext(t, s, "a@k3:1", "a@k3:2")
		wantEnd(t, s, unauthorized)
	})
}

// Something answers in the daemon's place, in another language. The subscription goes on as soon
// as that ends, and has asked seldom.
func TestAnotherServersAnswersDoNotEndTheSubscription(t *testing.T) {
	for name, body := range map[string]string{
		"text/html":            "<html>Welcome to the hotel",
		"application/x-ndjson": "[\"neither\"]\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := serveFake(t, f)
				f.script = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method != http.MethodGet {
						return false
					}
					w.Header().Set("Content-Type", name)
					_, _ = w.Write([]byte(body))
					return true
				}
				var waited waits
				s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch), waited.notify())
				time.Sleep(time.Hour)
				errs, all := waited.seen()
				require.Less(t, len(errs), 3600/15+20)
				require.Greater(t, all[len(all)-1], DefaultMaxBackoff)
				require.ErrorAs(t, errs[len(errs)-1], new(*UnexpectedAnswerError))
				f.publish("a", 1)
				f.set(func() { f.script = nil })
				wantNext(t, s, "a@k3:1")
			})
		})
	}
}

// Empty answers that come at once are not asked for in a rush: after five in a row a new session
// is opened, and then the client waits.
func TestEmptyAnswersAreNotARush(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		var polls atomic.Int64
		f.script = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				return false
			}
			if polls.Add(1) == 1 {
				return false // it opens a stateless subscription
			}
			if r.Header.Get("Upgrade") != "" {
				conn, _, _, err := ws.UpgradeHTTP(r, w)
				require.NoError(t, err)
				conn.Close()
				return true
			}
			w.Header().Set("Content-Type", r.Header.Get("Accept"))
			return true
		}
		var waited waits
		s := subscribe(t, c, []wire.Start{FromNow("a")}, append(w.options, waited.notify())...)
		synctest.Wait()
		f.breakOff()
		time.Sleep(15 * time.Minute)
		require.Less(t, polls.Load(), int64(250))
		require.Greater(t, polls.Load(), int64(30))

		errs, all := waited.seen()
		if errors.Is(errs[len(errs)-1], errEarly) {
			require.ErrorContains(t, errs[len(errs)-1], "proxy")
			require.Greater(t, all[len(all)-1], DefaultMaxBackoff)
			require.LessOrEqual(t, f.opened, 2, "one new session was tried")
		}
		f.publish("a", 1)
		f.set(func() { f.script = nil })
		wantNext(t, s, "a@k3:1")
	})
}

// A proxy that gives up polls before the daemon does costs a short wait each time,
// not ever longer ones.
func TestPollsThatAProxyCutsDoNotSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		f.script = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				return false
			}
			holdUp(r, 15*time.Second)
			http.Error(w, "gateway timeout", http.StatusGatewayTimeout)
			return true
		}
		var waited waits
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch), waited.notify())
		time.Sleep(time.Hour)
		s.Close()
		_, all := waited.seen()
		require.Greater(t, len(all), 200)
		for _, wait := range all {
			require.LessOrEqual(t, wait, firstBackoff)
		}
	})
}

// However long the daemon was away, what arrives since makes the next failure the
// first again.
func TestAFrameEndsARowOfFailures(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		var waited waits
		s := subscribe(t, c, []wire.Start{FromNow("a")}, append(w.options, waited.notify())...)
		synctest.Wait()
		f.goDown()
		time.Sleep(time.Minute)
		f.set(func() { f.down, f.script = false, nil })
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		synctest.Wait()
		_, before := waited.seen()
		require.Greater(t, before[len(before)-1], 4*time.Second)

		f.goDown()
		synctest.Wait()
		_, after := waited.seen()
		require.Len(t, after, len(before)+1)
		require.LessOrEqual(t, after[len(before)], firstBackoff)
	})
}

func TestAProxysRetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, said := range []string{"60", time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)} {
			err := &UnexpectedAnswerError{http.StatusTooManyRequests, "", retryAfterOf(http.Header{"Retry-After": {said}})}
			require.Equal(t, time.Minute, retryAfter(err), said)
		}
	})
}

// Two daemons that do not know each other take turns behind one address.
func TestAlternatingEpochsAreNotARush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		var polls atomic.Int64
		f.script = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				return false
			}
			epoch := []string{"k4", "k5"}[polls.Add(1)%2]
			w.Header().Set("Content-Type", "application/x-ndjson")
			_, _ = w.Write([]byte(`{"position":"a@` + epoch + `:1","time":1,"data":1}` + "\n"))
			return polls.Load() < 5000
		}
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch))
		for began := time.Now(); time.Since(began) < 10*time.Minute; {
			_, err := s.Next(t.Context())
			require.NoError(t, err)
		}
		require.Less(t, polls.Load(), int64(200))
	})
}
