package pubsub

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// holdsBack is a script of a proxy that knows requests and answers, of which it keeps
// streams until they end, which they do not.
func holdsBack(f *fake) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case !isStream(r):
			return false
		case r.Header.Get("Upgrade") != "":
			http.Error(w, "what is that?", http.StatusBadRequest)
			return true
		}
		f.route(discard{http.Header{}}, r)
		return true
	}
}

func TestAStreamThatIsHeldBackIsGivenUpForPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.script = holdsBack(f)
		began := time.Now()
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")})
		require.Equal(t, LongPoll, s.Transport())
		require.GreaterOrEqual(t, time.Since(began), helloPatience)
		require.Less(t, time.Since(began), 2*helloPatience)
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		f.set(func() { require.Len(t, f.sessions, 1, "that of the stream was closed") })
	})
}

// Little time is shared by the transports.
func TestAutoLeavesTimeForPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.script = holdsBack(f)
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithOpenTimeout(3*time.Second))
		require.Equal(t, LongPoll, s.Transport())
	})
}

// A WebSocket is refused, passed on as something else, broken off, or opened and then
// held back.
func TestAWebSocketThatDoesNotGetThroughIsGivenUpForAStream(t *testing.T) {
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", code) }
	}
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		wait   time.Duration
	}{
		"200": {status(200), 0},
		"400": {status(400), 0},
		"403": {status(403), 0},
		"426": {status(426), 0},
		"502": {status(502), 0},
		"a daemon without": {func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, problem.New(wire.CodeNotFound, "", "no such path"))
		}, 0},
		"broken off": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0},
		"the answer to another": {func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
			conn, _, _, _ := ws.UpgradeHTTP(r, w)
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}, 0},
		"another language": {func(w http.ResponseWriter, r *http.Request) {
			conn, _, _, _ := ws.UpgradeHTTP(r, w)
			_ = ws.WriteFrame(conn, ws.NewTextFrame([]byte("welcome!\n")))
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}, 0},
		"no answer": {func(w http.ResponseWriter, r *http.Request) { hang(w, r) }, helloPatience},
		"no hello": {func(w http.ResponseWriter, r *http.Request) {
			conn, _, _, _ := ws.UpgradeHTTP(r, w)
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}, helloPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.script = func(w http.ResponseWriter, r *http.Request) bool {
					upgrade := r.Header.Get("Upgrade") != ""
					if upgrade {
						c.answer(w, r)
					}
					return upgrade
				}
				began := time.Now()
				s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")})
				require.Equal(t, HTTPStream, s.Transport())
				require.Equal(t, c.wait, time.Since(began))
				f.publish("a", 1)
				wantNext(t, s, "a@k3:1")

				f.set(func() { f.script = nil })
				f.breakOff()
				f.publish("a", 1)
				wantNext(t, s, "a@k3:2")
				require.Equal(t, HTTPStream, s.Transport(), "what worked is kept")
			})
		})
	}
}

func TestAutoKeepsWhatWorked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")})
		require.Equal(t, WebSocket, s.Transport())
		f.goDown()
		time.Sleep(time.Hour)
		f.set(func() { f.down, f.script = false, nil })
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		require.Equal(t, WebSocket, s.Transport())
		f.restart("k4")
		wantNext(t, s, "restarted a@k3:1-a@k4:0")
		require.Equal(t, WebSocket, s.Transport())
	})
}

// What passes is no reason to give up what has worked.
func TestATransportThatFailsOnceIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")})
		failed := false
		f.set(func() {
			f.script = func(w http.ResponseWriter, _ *http.Request) bool {
				again := failed
				if failed = true; !again {
					http.Error(w, "restarting", http.StatusBadGateway)
				}
				return !again
			}
		})
		f.breakOff()
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		require.True(t, failed)
		require.Equal(t, WebSocket, s.Transport())
	})
}

// Where nobody is there is nothing to be tried by other transports.
func TestAutoDialsOnceAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.down = true
		var waited waits
		_, err := serveFake(t, f).Subscribe(t.Context(), []wire.Start{FromNow("a")}, waited.notify())
		require.ErrorIs(t, err, errOpenTimeout)
		_, all := waited.seen()
		require.Equal(t, len(all), f.dials)
	})
}

// The machine is carried into a network that lets less through.
func TestATransportThatIsBlockedLaterIsGivenUp(t *testing.T) {
	for name, status := range map[string]int{"at once": http.StatusForbidden, "after a while": http.StatusBadGateway} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")})
				require.NotEqual(t, LongPoll, s.Transport())
				f.set(func() {
					f.script = func(w http.ResponseWriter, r *http.Request) bool {
						blocked := isStream(r)
						if blocked {
							http.Error(w, "not here", status)
						}
						return blocked
					}
				})
				f.breakOff()
				f.publish("a", 1)
				wantNext(t, s, "a@k3:1")
				require.Equal(t, LongPoll, s.Transport())
				f.publish("a", 1)
				wantNext(t, s, "a@k3:2")
			})
		})
	}
}

// isStream reports whether a request is for what does not end.
func isStream(r *http.Request) bool {
	return r.FormValue("mode") == string(Stream) || strings.HasPrefix(r.URL.Path, "/v1/ws")
}

// "Later", and no connection at all, are no fault of the transport.
func TestAutoDoesNotGiveUpWhatTheDaemonPutsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		overloaded := problem.New(wire.CodeOverloaded, "", "too much")
		overloaded.RetryAfterMS = 60_000
		refuseOnce(f, isStream, overloaded)
		f.down = true
		var waited waits
		time.AfterFunc(time.Second, func() { f.set(func() { f.down = false }) })
		s := subscribe(t, c, []wire.Start{FromNow("a")}, waited.notify(), WithOpenTimeout(time.Hour))
		require.Equal(t, WebSocket, s.Transport())
		_, all := waited.seen()
		require.Contains(t, all, time.Minute)
	})
}

// What the daemon refuses by any transport is told as it says it, without a wait.
func TestAutoTellsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var asked atomic.Int64
		forbidden := problem.New(wire.CodeForbidden, "", "not you")
		f.script = func(w http.ResponseWriter, _ *http.Request) bool {
			asked.Add(1)
			refuse(w, forbidden)
			return true
		}
		began := time.Now()
		_, err := serveFake(t, f).Subscribe(t.Context(), []wire.Start{FromNow("a")})
		require.ErrorIs(t, err, forbidden)
		require.Zero(t, time.Since(began))
		require.LessOrEqual(t, asked.Load(), int64(3))
	})
}

// Auto without sessions is without them by all transports.
func TestAutoMayBeStateless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.script = holdsBack(f)
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithTransport(Auto), Stateless())
		require.Equal(t, LongPoll, s.Transport())
		require.Zero(t, f.opened)
	})
}
