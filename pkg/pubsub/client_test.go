package pubsub

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestNewChecksTheAddressAndTheOptions(t *testing.T) {
	for _, good := range []string{"http://127.0.0.1:8080", "https://push.example.com", "http://proxy/push/"} {
		c, err := New(good)
		require.NoError(t, err, good)
		c.Close()
	}
	for _, bad := range []string{"", "127.0.0.1:8080", "localhost", "ftp://host", "http://", "http://h?x=1", "http://h#f", "http://h:port", "ws://host", "unix:/run/socket", "http://user@h", "http://user:secret@h"} {
		_, err := New(bad)
		require.ErrorContains(t, err, "the daemon's address", bad)
		require.NotContains(t, err.Error(), "secret")
	}
	for _, bad := range []Option{
		WithHTTPClient(&http.Client{Timeout: time.Second}),
		WithMaxBackoff(0),
		WithPublishRetry(-1),
	} {
		_, err := New("http://host", bad)
		require.Error(t, err)
	}
}

func TestPathsAreBelowTheBase(t *testing.T) {
	for base, want := range map[string]string{
		"http://host":       "http://host/v1/topics/a.b/messages?key=k",
		"http://host/push":  "http://host/push/v1/topics/a.b/messages?key=k",
		"http://host/push/": "http://host/push/v1/topics/a.b/messages?key=k",
	} {
		c, err := New(base)
		require.NoError(t, err)
		req, err := c.request(t.Context(), http.MethodPost, "v1/topics/a.b/messages", map[string][]string{"key": {"k"}}, nil)
		require.NoError(t, err)
		require.Equal(t, want, req.URL.String())
	}
}

// The id of a session is a capability: no error may carry it to a log.
func TestNoErrorQuotesTheSession(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		var waited waits
		subscribe(t, c, []wire.Start{FromNow("a")}, append(w.options, waited.notify())...)
		synctest.Wait()
		f.goDown()
		time.Sleep(time.Minute)
		errs, _ := waited.seen()
		require.NotEmpty(t, errs)
		for _, err := range errs {
			require.NotContains(t, err.Error(), "session-")
			require.NotContains(t, err.Error(), "/v1")
		}
	})
}

func TestProblemsAreReadStrictly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		answer := func(contentType, body string) error {
			f.set(func() {
				f.script = func(w http.ResponseWriter, _ *http.Request) bool {
					w.Header().Set("Content-Type", contentType)
					w.Header().Set("Retry-After", "3")
					w.WriteHeader(http.StatusForbidden)
					_, _ = w.Write([]byte(body))
					return true
				}
			})
			_, err := c.Publish(t.Context(), "a", "", []byte("1"))
			return err
		}
		problem := (*wire.Problem)(nil)
		require.ErrorAs(t, answer("application/problem+json; charset=utf-8", `{"status":1,"code":"forbidden","new":2}`), &problem)
		require.Equal(t, &wire.Problem{Status: 403, Code: wire.CodeForbidden, RetryAfterMS: 3000}, problem)
		for _, err := range []error{
			answer("text/html", `{"code":"forbidden"}`),
			answer(wire.ProblemType, `{"title":"Forbidden"}`),
			answer(wire.ProblemType, `{"code":`),
			answer("text/html", strings.Repeat("<p>", 1<<20)),
		} {
			require.NotErrorAs(t, err, &problem)
			require.ErrorContains(t, err, "answered 403 Forbidden")
			require.Less(t, len(err.Error()), 200)
		}
	})
}
