package pubsub

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func wantChange(t *testing.T, s *Subscription, add []wire.Start, remove []string, want ...string) {
	t.Helper()
	positions, err := s.Change(t.Context(), add, remove)
	require.NoError(t, err)
	got := []string{}
	for _, p := range positions {
		got = append(got, p.String())
	}
	require.ElementsMatch(t, want, got)
}

func TestChangeWhileAPollIsParked(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("b", 2)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, w.options...)
		time.Sleep(time.Second)
		polls := len(f.seen())

		wantChange(t, s, []wire.Start{FromNow("b"), FromNow("a")}, nil, "b@k3:2", "a@k3:0")
		wantPositions(t, s, "a@k3:0", "b@k3:2")
		f.publish("b", 1)
		f.publish("a", 1)
		got := map[string]bool{}
		for range 2 {
			item, err := s.Next(t.Context())
			require.NoError(t, err)
			got[text(item)] = true
		}
		require.Equal(t, map[string]bool{"a@k3:1": true, "b@k3:3": true}, got)

		wantChange(t, s, nil, []string{"a", "never.had"})
		wantPositions(t, s, "b@k3:3")
		f.publish("a", 1)
		wantQuiet(t, s)
		f.publish("b", 1)
		wantNext(t, s, "b@k3:4")
		if f.opened > 0 {
			require.Equal(t, 1, f.opened, "the session was kept")
			require.Equal(t, 2, f.patches)
			return
		}
		require.Greater(t, len(f.seen()), polls, "the poll was restarted")
	})
}

// What waits in the buffer of a removed topic is not returned any more; a topic
// moved back to its beginning is delivered from there, whatever was on its way.
func TestATopicMovedBackComesAgainFromThere(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("a", 5)
		s := subscribe(t, c, []wire.Start{FromOldest("a")}, w.options...)
		wantNext(t, s, "a@k3:1", "a@k3:2")
		synctest.Wait() // the rest is in the buffer
		wantChange(t, s, []wire.Start{FromPosition(position(t, "a@k3:1"))}, []string{"a"}, "a@k3:1")
		wantPositions(t, s, "a@k3:1")
		wantNext(t, s, "a@k3:2", "a@k3:3", "a@k3:4", "a@k3:5")
		wantChange(t, s, []wire.Start{FromNow("b")}, []string{"a"}, "b@k3:0")
		wantChange(t, s, []wire.Start{FromOldest("a")}, nil, "a@k3:0")
		wantNext(t, s, "a@k3:1", "a@k3:2", "a@k3:3", "a@k3:4", "a@k3:5")
		wantQuiet(t, s)
		require.LessOrEqual(t, len(f.sessions), 1, "the sessions before were ended")
	})
}

// A frame of a removed topic that the daemon had sent before, and that comes after
// the topic was added again, must not hide what the new subscription is owed.
func TestALateFrameOfAnEarlierStayHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("a", 5)
		polls := 0
		f.script = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				return false
			}
			if polls++; polls != 2 {
				return false
			}
			sent := httptest.NewRecorder()
			f.route(sent, r)
			holdUp(r, 15*time.Second) // the answer is a while on its way
			w.Header().Set("Content-Type", sent.Header().Get("Content-Type"))
			_, _ = w.Write(sent.Body.Bytes())
			return true
		}
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch))
		f.publish("a", 1)
		wantNext(t, s, "a@k3:6")
		f.publish("a", 1)
		synctest.Wait() // 7 is on its way
		wantChange(t, s, nil, []string{"a"})
		wantChange(t, s, []wire.Start{FromOldest("a")}, nil, "a@k3:0")
		wantNext(t, s, "a@k3:1", "a@k3:2", "a@k3:3", "a@k3:4", "a@k3:5", "a@k3:6", "a@k3:7")
		wantQuiet(t, s)
	})
}

// refuseOnce makes the daemon answer the first request that matches with p.
func refuseOnce(f *fake, matches func(r *http.Request) bool, p *wire.Problem) *int {
	times := new(int)
	f.script = func(w http.ResponseWriter, r *http.Request) bool {
		if *times > 0 || !matches(r) {
			return false
		}
		*times++
		refuse(w, p)
		return true
	}
	return times
}

// changes reports whether a request changes topics, when no subscription begins.
func changes(r *http.Request) bool {
	return r.Method == http.MethodPatch || r.URL.Path == "/v1/poll" || r.URL.Path == "/v1/sse"
}

func TestARefusedChangeLeavesAllAsItWas(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, w.options...)
		synctest.Wait()
		f.set(func() {
			refuseOnce(f, changes, problem.New(wire.CodeForbidden, "", "not b"))
		})
		_, err := s.Change(t.Context(), []wire.Start{FromNow("b")}, []string{"a"})
		problem := (*wire.Problem)(nil)
		require.ErrorAs(t, err, &problem)
		require.Equal(t, wire.CodeForbidden, problem.Code)
		wantPositions(t, s, "a@k3:0")
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
	})
}

// The answer to the PATCH is lost after the daemon has carried it out.
func TestAChangeOfUnknownOutcomeIsMadeInANewSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a"), FromNow("b")}, WithMode(Batch))
		synctest.Wait()
		f.set(func() {
			lost := false
			f.script = func(w http.ResponseWriter, r *http.Request) bool {
				if lost || r.Method != http.MethodPatch {
					return false
				}
				lost = true
				f.route(discard{http.Header{}}, r)
				panic(http.ErrAbortHandler)
			}
		})
		wantChange(t, s, []wire.Start{FromNow("c")}, []string{"a"}, "c@k3:0")
		require.Equal(t, 2, f.opened)
		f.publish("a", 1)
		f.publish("b", 1)
		wantNext(t, s, "b@k3:1")
		f.publish("c", 1)
		wantNext(t, s, "c@k3:1")
		wantPositions(t, s, "b@k3:1", "c@k3:1")
		wantQuiet(t, s)
	})
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// The session is gone when the change comes: it is made in the next one.
func TestAChangeOutlivesItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch))
		synctest.Wait()
		f.set(func() { delete(f.sessions, "session-1") })
		wantChange(t, s, []wire.Start{FromNow("b")}, nil, "b@k3:0")
		f.publish("b", 1)
		wantNext(t, s, "b@k3:1")
	})
}

func TestChangeWaitsForTheDaemonUntilItsContextEnds(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, w.options...)
		synctest.Wait()
		f.set(func() {
			f.down = true
			f.script = func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := s.Change(ctx, []wire.Start{FromNow("b")}, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		f.set(func() { f.down, f.script = false, nil })
		time.Sleep(time.Minute)
		wantPositions(t, s, "a@k3:0")
		wantChange(t, s, []wire.Start{FromNow("c")}, nil, "c@k3:0")
		f.publish("b", 1)
		f.publish("c", 1)
		wantNext(t, s, "c@k3:1")
		wantQuiet(t, s)
	})
}

func TestChangeChecksItsTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, Stateless())
		_, err := s.Change(t.Context(), []wire.Start{FromNow("b"), FromOldest("b")}, nil)
		require.ErrorContains(t, err, "listed twice")
		_, err = s.Change(t.Context(), nil, []string{"a"})
		require.ErrorIs(t, err, errNoTopics)
		wantPositions(t, s, "a@k3:0")
	})
}

// "Later" is the caller's to wait for; what is subscribed to already does not wait.
func TestAChangeAnsweredLaterHoldsNothingUp(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, w.options...)
		synctest.Wait()
		overloaded := problem.New(wire.CodeOverloaded, "", "too many topics")
		overloaded.RetryAfterMS = 60_000
		f.set(func() {
			refuseOnce(f, changes, overloaded)
		})
		began := time.Now()
		_, err := s.Change(t.Context(), []wire.Start{FromPosition(position(t, "b@k3:0"))}, nil)
		require.ErrorIs(t, err, overloaded)
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		require.Zero(t, time.Since(began))
		wantPositions(t, s, "a@k3:1")
	})
}

// A proxy's 503 may hide that the daemon has carried the change out.
func TestAProxys503ToAChangeIsUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch))
		synctest.Wait()
		f.set(func() {
			f.script = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPatch {
					return false
				}
				f.route(discard{http.Header{}}, r)
				http.Error(w, "upstream reset", http.StatusServiceUnavailable)
				return true
			}
		})
		wantChange(t, s, []wire.Start{FromNow("b")}, nil, "b@k3:0")
		require.Equal(t, 2, f.opened, "the session can be trusted no longer")
		f.publish("b", 1)
		wantNext(t, s, "b@k3:1")
	})
}
