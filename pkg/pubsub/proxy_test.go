package pubsub

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// What stands between the client and the daemon answers in its place, for a while.

func TestOneMaintenancePageDoesNotEndASubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithMode(Batch))
		synctest.Wait()
		answered := 0
		f.set(func() {
			f.script = func(w http.ResponseWriter, _ *http.Request) bool {
				answered++
				switch {
				case answered <= 4:
					http.Error(w, "bad gateway", http.StatusBadGateway)
				case answered == 5:
					w.Header().Set("Content-Type", "text/html")
					_, _ = io.WriteString(w, "<h1>we will be back soon")
				}
				return answered <= 5
			}
		})
		f.breakOff()
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
	})
}

// A page that quotes the URL must not carry the session's id into our errors.
func TestAnErrorDoesNotQuoteTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var waited waits
		subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithMode(Batch), waited.notify())
		synctest.Wait()
		path := ""
		f.set(func() {
			f.script = func(w http.ResponseWriter, r *http.Request) bool {
				f.set(func() { path = r.URL.Path })
				http.Error(w, "Cannot "+r.Method+" "+r.URL.Path, http.StatusNotFound)
				return true
			}
		})
		f.breakOff()
		time.Sleep(time.Minute)
		errs, _ := waited.seen()
		require.ErrorContains(t, errs[len(errs)-1], "404")
		f.set(func() { require.NotContains(t, errs[len(errs)-1].Error(), strings.Split(path, "/")[3]) })
	})
}

// Clients at the same position must not send the same URL: a cache would make one
// request of them.
func TestStatelessPollsDifferInTheirURLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		urls := map[string]bool{}
		f.script = func(_ http.ResponseWriter, r *http.Request) bool {
			f.set(func() { urls[r.URL.String()] = true })
			return false
		}
		c := serveFake(t, f)
		for range 3 {
			subscribe(t, c, []wire.Start{FromNow("a")}, Stateless())
		}
		synctest.Wait()
		f.set(func() { require.Len(t, urls, 6, "each asked for its position, and then polled") })
	})
}

// A daemon may hold polls for longer than by default, and a stateless subscription
// that resumes from positions is never told.
func TestAPollThatIsHeldForLongIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.limits.PollTimeoutMS = 60_000
		var waited waits
		start := FromPosition(wire.Position{Topic: "a", Epoch: "k3"})
		subscribe(t, serveFake(t, f), []wire.Start{start}, Stateless(), waited.notify())
		time.Sleep(10 * time.Minute)
		errs, _ := waited.seen()
		require.Empty(t, errs)
	})
}

func TestARefusedStatelessChangeLeavesAllAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, Stateless())
		synctest.Wait()
		f.set(func() {
			f.script = func(w http.ResponseWriter, r *http.Request) bool {
				forbidden := strings.Contains(r.URL.RawQuery, "topic=b")
				if forbidden {
					refuse(w, problem.New(wire.CodeForbidden, "", "not b"))
				}
				return forbidden
			}
		})
		_, err := s.Change(t.Context(), []wire.Start{FromPosition(wire.Position{Topic: "b", Epoch: "k3"})}, nil)
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeForbidden})
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		require.Len(t, s.Positions(), 1)
	})
}

// roundTrip is a RoundTripper that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The caller of a Change that was given up may use its slices again at once, though
// the answer is still being taken in.
func TestChangeDoesNotKeepTheCallersSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := serveFake(t, newFake())
		ctx, giveUp := context.WithCancel(t.Context())
		reused := make(chan struct{})
		through := func(r *http.Request) (*http.Response, error) {
			resp, err := plain.http.Transport.RoundTrip(r)
			if r.Method != http.MethodPatch || err != nil {
				return resp, err
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body = io.NopCloser(strings.NewReader(string(body))) // all of it had come
			giveUp()
			<-reused
			return resp, err
		}
		c, err := New("http://daemon", WithHTTPClient(&http.Client{Transport: roundTrip(through)}))
		require.NoError(t, err)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch))
		add := []wire.Start{FromNow("b")}
		_, err = s.Change(ctx, add, nil)
		require.ErrorIs(t, err, context.Canceled)
		add[0] = FromNow("something.else")
		close(reused)
		synctest.Wait()
		for _, p := range s.Positions() {
			require.Contains(t, []string{"a", "b"}, p.Topic)
		}
	})
}
