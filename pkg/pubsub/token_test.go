package pubsub

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A gate answers publishes with the token "new", and notes what comes.
type gate struct {
	*httptest.Server
	came []string // credentials and bodies
}

func newGate(t *testing.T) *gate {
	g := &gate{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		g.came = append(g.came, r.Header.Get("Authorization")+" "+string(body))
		if r.Header.Get("Authorization") != "Bearer new" {
			refuse(w, problem.New(wire.CodeTokenExpired, "", "it is old"))
			return
		}
		_, _ = io.WriteString(w, `{"position":"a@k3:1","time":1}`)
	}))
	t.Cleanup(g.Close)
	return g
}

// tokensInTurn is a source of these tokens; then it fails.
func tokensInTurn(tokens ...string) Option {
	return WithTokenSource(func(context.Context) (string, error) {
		if len(tokens) == 0 {
			return "", errors.New("no more tokens")
		}
		token := tokens[0]
		tokens = tokens[1:]
		return token, nil
	})
}

func (g *gate) publish(t *testing.T, option Option) error {
	t.Helper()
	c, err := New(g.URL, option)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.PublishJSON(t.Context(), "a", 1)
	return err
}

func TestARefusedTokenIsAskedForAgainOnce(t *testing.T) {
	g := newGate(t)
	require.NoError(t, g.publish(t, tokensInTurn("old", "new")))
	require.Equal(t, []string{"Bearer old 1", "Bearer new 1"}, g.came, "the body is sent again")

	g = newGate(t)
	require.ErrorIs(t, g.publish(t, tokensInTurn("old", "older", "new")), &wire.Problem{Code: wire.CodeTokenExpired})
	require.Equal(t, []string{"Bearer old 1", "Bearer older 1"}, g.came)

	g = newGate(t)
	require.ErrorIs(t, g.publish(t, WithToken("old")), &wire.Problem{Code: wire.CodeTokenExpired})
	require.Equal(t, []string{"Bearer old 1"}, g.came, "a token that stays the same is not sent again")
}

// Without a token nothing is sent, so nothing may have been published.
func TestAnErrorOfTheSourceMeansThatNothingWasPublished(t *testing.T) {
	g := newGate(t)
	err := g.publish(t, tokensInTurn())
	require.ErrorContains(t, err, `publish "a": get a token: no more tokens`)
	require.False(t, isUnknown(err))
	require.Empty(t, g.came)
}

// badTokens are what no header may carry.
var badTokens = []string{"", " \n", "psk_secret\nX-Other: 1", "psk_secret psk_other", "Bearer psk_secret", "psk_s\u00e9cret", "psk_secret\x00", "psk_secret\xff"}

func TestWhiteSpaceAroundATokenIsRemoved(t *testing.T) {
	for _, token := range []string{"new\n", " new\r\n", "\tnew\u00a0", "new"} {
		for _, option := range []Option{WithToken(token), tokensInTurn(token)} {
			g := newGate(t)
			require.NoError(t, g.publish(t, option))
			require.Equal(t, []string{"Bearer new 1"}, g.came)
		}
	}
}

func TestWhatCannotBeATokenIsRefusedAndNotQuoted(t *testing.T) {
	for _, token := range badTokens {
		_, err := New("http://127.0.0.1:1", WithToken(token))
		require.ErrorContains(t, err, "visible ASCII")
		require.NotContains(t, err.Error(), "psk")

		g := newGate(t)
		err = g.publish(t, tokensInTurn(token, "new"))
		require.ErrorContains(t, err, `publish "a": get a token: the token must be`)
		require.NotContains(t, err.Error(), "psk")
		require.False(t, isUnknown(err))
		require.Empty(t, g.came)
	}
}

// A subscription calls a source again that returned no token.
func TestASubscriptionAsksAgainForATokenThatCannotBeOne(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		var reasons []string
		f := newFake()
		c := serveFake(t, f)
		require.NoError(t, tokensInTurn("", "psk_secret\n psk_other", "new")(c))
		notify := WithRetryNotify(func(err error, _ time.Duration) { reasons = append(reasons, err.Error()) })
		s := subscribe(t, c, []wire.Start{FromNow("a")}, append(w.options, notify)...)
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		require.Len(t, reasons, 2)
		for _, reason := range reasons {
			require.Contains(t, reason, "get a token: the token must be")
			require.NotContains(t, reason, "psk")
		}
	})
}

func TestATokenSourceIsNeeded(t *testing.T) {
	_, err := New("http://127.0.0.1:1", WithTokenSource(nil))
	require.ErrorContains(t, err, "omit the option")
}

// A request does not wait for the source longer than its context lasts.
func TestARequestWaitsForTheSourceAsLongAsItsContext(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	source := tokens{turn: make(chan struct{}, 1), source: func(context.Context) (string, error) {
		close(asked)
		<-answer
		return "t", nil
	}}
	first := make(chan string)
	go func() {
		token, _ := source.get(context.Background(), "")
		first <- token
	}()
	<-asked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := source.get(ctx, "")
	require.ErrorIs(t, err, context.Canceled)
	close(answer)
	require.Equal(t, "t", <-first)
}

// A client certificate expires, too. A client without a source of tokens has none to send.
func TestAClientWithoutATokenRenewsNothing(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		f.expires = time.Minute.Milliseconds()
		notify := WithRetryNotify(func(err error, _ time.Duration) { t.Errorf("retried: %v", err) })
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, append(w.options, notify)...)
		wantQuiet(t, s)
		f.set(func() { require.Zero(t, f.patches) })
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
	})
}

// The daemon refuses the requests of a connection whose certificate has expired. A client
// without a source of tokens makes another connection, which may show a newer certificate, and
// keeps its session. It ends when the daemon refuses that connection, too.
func TestAClientWithoutATokenReconnectsWhenItIsRefused(t *testing.T) {
	for _, refusesAll := range []bool{false, true} {
		f := newFake()
		server := httptest.NewServer(f)
		t.Cleanup(server.Close) // after the subscription
		var first string        // address of the client on its first connection; guarded by f.mu
		f.script = func(w http.ResponseWriter, r *http.Request) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			opens := first == ""
			if opens {
				first = r.RemoteAddr
			}
			refused := !opens && r.Method != http.MethodDelete && (refusesAll || r.RemoteAddr == first)
			if refused {
				refuse(w, problem.New(wire.CodeTokenExpired, "", "it is old"))
			}
			return refused
		}
		c, err := New(server.URL)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch))
		if refusesAll {
			wantEnd(t, s, &wire.Problem{Code: wire.CodeTokenExpired})
			continue
		}
		f.publish("a", 1)
		wantNext(t, s, "a@k3:1")
		f.set(func() { require.Equal(t, []int{1, 1}, []int{f.opened, f.patches}) })
	}
}

// A two-way connection whose certificate has expired ends with token_expired.
func TestAConnectionWithoutATokenIsReopenedWhenItExpires(t *testing.T) {
	for _, transport := range []Transport{WebSocket, TCP} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.endsWith = problem.New(wire.CodeTokenExpired, "", "it is old")
			s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithTransport(transport))
			f.endSessions()
			f.publish("a", 1)
			wantNext(t, s, "a@k3:1")
			f.set(func() {
				require.Equal(t, []int{2, 0}, []int{f.opened, f.patches})
				f.script = func(w http.ResponseWriter, _ *http.Request) bool {
					refuse(w, problem.New(wire.CodeUnauthorized, "", "no certificate"))
					return true
				}
			})
			f.endSessions()
			wantEnd(t, s, &wire.Problem{Code: wire.CodeUnauthorized})
		})
	}
}
