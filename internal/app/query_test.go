package app

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A decoder decodes when the test lets it.
type decoder struct{ began, end chan struct{} }

// decode reads a body, and decodes it in turn. Without d, it takes no time.
func (a *App) decode(ctx context.Context, read Body, d *decoder) error {
	body, err := read(a.MostBytes())
	if err != nil {
		return err
	}
	o := Opening{app: a, ctx: ctx}
	return o.Decode(len(body), func() error {
		if d != nil {
			d.began <- struct{}{}
			<-d.end
		}
		return nil
	})
}

// turns is how many turns there are.
func turns() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// takeTurns takes n turns, for calls of others, and returns how to end them.
func (a *App) takeTurns(t *testing.T, n int) (leave func()) {
	t.Helper()
	turns := a.cfg.Limiter.Turns()
	for range n {
		require.NoError(t, turns.Enter(t.Context(), nil))
	}
	return func() {
		for range n {
			turns.Leave()
		}
	}
}

func TestOneLargeBodyIsDecodedAtATime(t *testing.T) {
	a := newApp(t)
	for name, row := range map[string]struct{ bytes, atOnce int }{
		"large": {request.LargeBody + 1, 1},
		"small": {request.LargeBody, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leave := a.takeTurns(t, turns()-1)
				defer leave()
				text := []byte(`"` + strings.Repeat("x", row.bytes-2) + `"`)
				d := &decoder{began: make(chan struct{}, 3), end: make(chan struct{})}
				for range 3 {
					go func() { _ = a.decode(t.Context(), bodyOf(string(text)), d) }()
				}
				for left := 3; left > 0; left-- {
					synctest.Wait()
					require.Len(t, d.began, min(row.atOnce, left))
					<-d.began
					d.end <- struct{}{}
				}
			})
		})
	}
}

// A client that leaves while its large body waits for its turn gives the turn up. A body that
// has not arrived has no turn.
func TestOnlyABodyThatIsThereHasATurn(t *testing.T) {
	a := newApp(t)
	synctest.Test(t, func(t *testing.T) {
		large := `{"topics":["a"` + strings.Repeat(" ", request.LargeBody) + `]}`
		arrives := make(chan string)
		open := func(ctx context.Context, body Body) chan error {
			over := make(chan error, 1)
			go func() { over <- a.decode(ctx, body, nil) }()
			synctest.Wait()
			return over
		}
		slow := open(t.Context(), func(int) ([]byte, error) { return []byte(<-arrives), nil })
		require.NoError(t, <-open(t.Context(), bodyOf(large)))

		others := a.takeTurns(t, turns())
		ctx, leave := context.WithCancel(t.Context())
		left, stayed := open(ctx, bodyOf(large)), open(t.Context(), bodyOf(large))
		require.NoError(t, <-open(ctx, bodyOf(`{"topics":["a"]}`)), "a small body needs no turn")
		leave()
		require.ErrorIs(t, <-left, context.Canceled)
		require.Empty(t, stayed)
		others()
		require.NoError(t, <-stayed)
		arrives <- large
		require.NoError(t, <-slow)
	})
}

// A caller without the right that a request needs is refused before its body arrives.
func TestABodyIsReadOnlyForACallerWithRights(t *testing.T) {
	for _, row := range []struct {
		subject, allow    string
		subscribe, manage wire.Code
	}{
		{"", "", wire.CodeUnauthorized, wire.CodeUnauthorized},
		{"", "history", wire.CodeUnauthorized, wire.CodeUnauthorized},
		{"ann", "", wire.CodeForbidden, wire.CodeForbidden},
		{"ann", "history", wire.CodeForbidden, wire.CodeForbidden},
		{"ann", "publish", wire.CodeForbidden, ""},
		{"ann", "subscribe", "", wire.CodeForbidden},
		{"ann", "presence", "", wire.CodeForbidden}, // subscribes to presence topics
	} {
		rights := "[]"
		if row.allow != "" {
			rights = `[{"topics":["chat.>"],"allow":["` + row.allow + `"]}]`
		}
		a := newApp(t, func(c *Config) { c.Authority = permit(t, row.subject, rights) })
		for name, call := range map[string]struct {
			refused wire.Code
			make    func(Body) error
		}{
			"session": {row.subscribe, func(b Body) error { _, err := a.openSession(t.Context(), Caller{}, b); return err }},
			"poll":    {row.subscribe, func(b Body) error { err := a.pollTopics(t.Context(), Caller{}, "", b); return err }},
			"many": {row.manage, func(b Body) error {
				_, err := a.publishMany(t.Context(), Caller{}, request.Head{ContentType: request.HeaderOf([]string{"application/json"})}, b)
				return err
			}},
		} {
			read := false
			err := call.make(func(int) ([]byte, error) { read = true; return nil, ErrClientGone })
			if call.refused == "" {
				require.ErrorIs(t, err, ErrClientGone, "%s with %s", name, row.allow)
				continue
			}
			require.ErrorIs(t, err, &wire.Problem{Code: call.refused}, "%s with %s", name, row.allow)
			require.False(t, read, "%s with %s", name, row.allow)
		}
	}
}

// Strangers cannot make the daemon decode the large first item of a TCP connection. Of a
// principal, it decodes one large item at a time.
func TestALargeFirstItemIsDecodedAfterAuthentication(t *testing.T) {
	large := func(members string) []byte {
		return cbor.AppendFromJSON(nil, []byte(`{`+members+`"topics":["`+strings.Repeat("a", request.LargeBody)+`"]}`))
	}
	guard(t, func(g *guarded) {
		id := g.open(g.token("t", time.Hour, "a", auth.Subscribe), "a")
		connect := func(members string) chan error {
			over := make(chan error, 1)
			go func() {
				err := g.connectByItem(g.Context(), Caller{}, large(members))
				over <- err
			}()
			synctest.Wait()
			return over
		}
		others := g.takeTurns(t, turns())
		require.ErrorIs(t, <-connect(""), &wire.Problem{Code: wire.CodeUnauthorized})
		principal := connect(`"auth":"` + g.token("u", time.Hour, "a", auth.Subscribe).Token + `",`)
		require.Empty(t, principal)
		resumes := connect(`"ack":0,"session":"` + id + `",`)
		require.Empty(t, resumes)
		others()
		require.ErrorIs(t, <-principal, &wire.Problem{Code: wire.CodeInvalidTopic})
		require.ErrorIs(t, <-resumes, request.ErrSessionAlone)
	})
}

// A token and a session's id are found under their exact names only.
func TestTheFirstItemNamesItsTokenExactly(t *testing.T) {
	a := newApp(t)
	for item, want := range map[string]string{
		`{"Auth":"t"}`:    `unknown field "Auth"`,
		`{"Session":"s"}`: `unknown field "Session"`,
		`{"auth":1}`:      `"auth" cannot be of the type number`,
		`{"auth":"` + strings.Repeat("t", request.LargeBody) + `"}`: "auth and session must have at most 65536 bytes",
	} {
		err := a.connectByItem(t.Context(), Caller{}, cbor.AppendFromJSON(nil, []byte(item)))
		require.ErrorContains(t, err, want)
	}
}
