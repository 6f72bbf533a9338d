package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/token"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A guarded App has the authority of a daemon. Tests sign its tokens.
type guarded struct {
	*testing.T
	*App
	private []byte
}

// newGuarded returns an App in which callers without credentials have the rights anonymous.
func newGuarded(t *testing.T, anonymous string, how ...func(*Config)) *guarded {
	t.Helper()
	private, public, err := token.GenerateKey("ES256")
	require.NoError(t, err)
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, public, 0o600))
	authority, err := auth.New(auth.Config{
		Keys: []string{keys}, Revocations: filepath.Join(t.TempDir(), "revoked"), TokenMaxAge: time.Hour, Anonymous: anonymous,
	}, metrics.New("test"), zap.NewNop())
	require.NoError(t, err)
	t.Cleanup(authority.Close)
	secure := func(c *Config) {
		c.Authority, c.Revocations = authority, authority.Revocations()
		c.Sessions = session.NewRegistry(session.Config{Revoked: authority.Revoked, Forbidden: authority.Revocations().Forbidden}, c.Broker, c.Metrics)
	}
	return &guarded{t, newApp(t, append([]func(*Config){secure}, how...)...), private}
}

// guard runs a test on a guarded App and on fake time.
func guard(t *testing.T, tell func(g *guarded), how ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { tell(newGuarded(t, "", how...)) })
}

// token returns ann's next token with an id. It may do some things on one topic.
func (g *guarded) token(id string, ttl time.Duration, topic string, allow ...auth.Right) Caller {
	g.Helper()
	time.Sleep(time.Second) // each token is newer than the last
	rights := request.InJSON([]any{map[string]any{"topics": []string{topic}, "allow": allow}})
	signed, err := token.Issue(g.private, token.Draft{Subject: "ann", ID: id, Issued: time.Now(), TTL: ttl, Rights: rights})
	require.NoError(g, err)
	return by(signed)
}

func (g *guarded) open(c Caller, topic string) (id string) {
	g.Helper()
	opened, err := g.openSession(g.Context(), c, bodyOf(`{"topics":["`+topic+`"]}`))
	require.NoError(g, err)
	return opened.Session
}

// connect continues a session on a two-way connection.
func (g *guarded) connect(c Caller, id string) transport.Duplex {
	g.Helper()
	d, err := g.App.connect(g.Context(), c, "ack=0&session="+id)
	require.NoError(g, err)
	return d
}

// command sends a command, and returns the problem in its reply.
func (g *guarded) command(d transport.Duplex, command string) error {
	g.Helper()
	done := make(chan *wire.Reply, 1)
	reply, later, giveUp, err := d.Do(g.Context(), d.Session, transport.Action{Command: []byte(command)}, func(f transport.Finish) { done <- finished(f) })
	require.NoError(g, err)
	switch {
	case later != nil:
		reply = finished(later(g.Context()))
	case giveUp != nil:
		reply = <-done
	}
	if reply != nil && reply.Problem != nil {
		return reply.Problem
	}
	return nil
}

func (g *guarded) patch(c Caller, id, body string) error {
	return g.changeSession(g.Context(), c, id, bodyOf(body))
}

func (g *guarded) revoke(id string) wire.RevokeResult {
	g.Helper()
	result, err := g.Revoke(wire.RevokeRequest{TokenID: id}, time.Now())
	require.NoError(g, err)
	return result
}

func (g *guarded) publish(c Caller, topic string, body Body) error {
	_, err := g.post(g.Context(), c, posting{Topic: topic, ContentType: request.HeaderOf([]string{"application/json"}), Body: body})
	return err
}

// topicsOf returns the topics to which a session is subscribed.
func (g *guarded) topicsOf(id string) (topics []string) {
	g.Helper()
	s, err := g.cfg.Sessions.Get([]byte(id))
	require.NoError(g, err)
	_, subscriptions := s.State(time.Now())
	for sub := range subscriptions {
		topics = append(topics, sub.Topic)
	}
	return topics
}

// meanwhile is a publish hook that agrees after something else has happened.
type meanwhile func()

func (m meanwhile) Publish(context.Context, hook.Principal, *wire.Message, time.Duration, func(*wire.PublishItem) error) error {
	m()
	return nil
}

// permits is an authorizer that agrees after something else has happened.
type permits func()

func (permits) Selects(topics []wire.Start) bool { return len(topics) > 0 }

func (p permits) Authorize(context.Context, hook.Subscribing) error {
	p()
	return nil
}

const renewFirst = "renew the session first"

// A principal has an older token with a right that the token of the session lacks. The older
// token is valid, but the session would keep its right after it has expired.
func TestASessionGetsNoRightOfAnOlderToken(t *testing.T) {
	guard(t, func(g *guarded) {
		older := g.token("older", time.Minute, "secret", auth.Subscribe)
		newer := g.token("newer", time.Hour, "other", auth.Subscribe)
		id := g.open(newer, "other")
		d := g.connect(older, id)
		for _, name := range []string{"secret", "secret@oldest"} {
			require.ErrorContains(t, g.patch(older, id, `{"add":["`+name+`"]}`), renewFirst)
			require.ErrorContains(t, g.command(d, `{"subscribe":["`+name+`"]}`), renewFirst)
		}
		require.ErrorIs(t, g.patch(older, id, `{"add":["secret"]}`), problem.New(wire.CodeForbidden, "", ""))
		require.Equal(t, []string{"other"}, g.topicsOf(id))

		newest := g.token("newest", time.Hour, ">", auth.Subscribe)
		require.NoError(t, g.patch(newest, id, "{}"))
		require.NoError(t, g.patch(older, id, `{"add":["secret"]}`), "the session's own token permits it")
		require.Equal(t, []string{"other", "secret"}, g.topicsOf(id))
	})
}

// A token with fewer rights renews the session while the application is asked about topics
// that the token before permits.
func TestASessionGetsNoRightThatARenewalTakes(t *testing.T) {
	guard(t, func(g *guarded) {
		strong := g.token("strong", time.Hour, ">", auth.Subscribe)
		weak := g.token("weak", time.Hour, "other", auth.Subscribe)
		for name, change := range map[string]func(id string) error{
			"PATCH":   func(id string) error { return g.patch(strong, id, `{"add":["secret"]}`) },
			"command": func(id string) error { return g.command(g.connect(strong, id), `{"subscribe":["secret"]}`) },
		} {
			g.cfg.Authorize = permits(func() {})
			id := g.open(strong, "other")
			g.cfg.Authorize = permits(func() { require.NoError(t, g.patch(weak, id, "{}")) })
			require.ErrorContains(t, change(id), renewFirst, name)
			require.Equal(t, []string{"other"}, g.topicsOf(id), name)
		}
	})
}

// The token of a two-way connection is revoked. The session has another token, so it stays. The
// connection may do what the session's id permits, until it sends a valid token.
func TestAConnectionMayDoNothingWithARevokedToken(t *testing.T) {
	guard(t, func(g *guarded) {
		valid := g.token("valid", time.Hour, "a", auth.Publish, auth.Subscribe)
		stolen := g.token("stolen", time.Hour, "a", auth.Publish, auth.Subscribe)
		session := g.token("session", time.Hour, ">", auth.Subscribe)
		id := g.open(session, "other")
		d := g.connect(stolen, id)
		commands := []string{`{"publish":{"topic":"a","data":1}}`, `{"subscribe":["a"]}`, `{"unsubscribe":["a"]}`}
		for _, command := range commands {
			require.NoError(t, g.command(d, command))
		}
		require.Zero(t, g.revoke("stolen").Ended)
		for _, command := range commands {
			require.ErrorIs(t, g.command(d, command), problem.New(wire.CodeUnauthorized, "", ""), command)
		}
		require.NoError(t, g.command(d, `{"ack":0}`))
		require.NoError(t, g.command(d, `{"ping":true}`))
		require.Error(t, g.command(d, `{"auth":"`+stolen.Token+`"}`))
		require.NoError(t, g.command(d, `{"auth":"`+valid.Token+`"}`), "it is older than the revoked one")
		for _, command := range commands {
			require.NoError(t, g.command(d, command))
		}
		require.Equal(t, 1, g.revoke("session").Ended)
		require.ErrorIs(t, g.command(d, `{"subscribe":["a"]}`), problem.New(wire.CodeSessionEnded, "", ""))
	})
}

// A token is revoked, or expires, while its call waits: the call fails.
func TestATokenIsCheckedAgainAfterACallHasWaited(t *testing.T) {
	hooked := func(c *Config) {
		c.Broker.Reload(broker.Config{HookTopics: []string{"asked"}}, time.Now())
	}
	const ttl = 10 * time.Second
	ends := map[wire.Code]func(g *guarded){
		wire.CodeUnauthorized: func(g *guarded) { g.revoke("t") },
		wire.CodeTokenExpired: func(*guarded) { time.Sleep(ttl) },
	}
	for name, call := range map[string]func(g *guarded, c Caller, wait func()) error{
		"the publish hook": func(g *guarded, c Caller, wait func()) error {
			g.cfg.Hook = meanwhile(wait)
			return g.publish(c, "asked", bodyOf("1"))
		},
		"the body of a message": func(g *guarded, c Caller, wait func()) error {
			return g.publish(c, "a", func(int) ([]byte, error) { wait(); return []byte("1"), nil })
		},
		"the authorize hook, for a session": func(g *guarded, c Caller, wait func()) error {
			g.cfg.Authorize = permits(wait)
			_, err := g.openSession(g.Context(), c, bodyOf(`{"topics":["a"]}`))
			return err
		},
		"the authorize hook, for a change": func(g *guarded, c Caller, wait func()) error {
			id := g.open(c, "b")
			g.cfg.Authorize = permits(wait)
			return g.patch(c, id, `{"add":["a"]}`)
		},
		"the authorize hook, for a command": func(g *guarded, c Caller, wait func()) error {
			d := g.connect(c, g.open(c, "b"))
			g.cfg.Authorize = permits(wait)
			return g.command(d, `{"subscribe":["a"]}`)
		},
	} {
		for code, end := range ends {
			t.Run(fmt.Sprint(name, ", ", code), func(t *testing.T) {
				guard(t, func(g *guarded) {
					c := g.token("t", ttl, ">", auth.Publish, auth.Subscribe)
					err := call(g, c, func() { end(g) })
					require.ErrorIs(t, err, problem.New(code, "", ""))
					require.False(t, g.cfg.Broker.Has("asked") || g.cfg.Broker.Has("a"))
				}, hooked)
			})
		}
	}
}

// openings has every way to open a session without a right on a topic. The query is without
// topics where the way permits that.
var openings = map[string]func(a *App, c Caller, body Body) error{
	"a session": func(a *App, c Caller, body Body) error {
		_, err := a.openSession(context.Background(), c, body)
		return err
	},
	"a poll": func(a *App, c Caller, _ Body) error {
		err := a.pollTopics(context.Background(), c, "topic=a", nil)
		return err
	},
	"a poll with a body": func(a *App, c Caller, body Body) error {
		err := a.pollTopics(context.Background(), c, "", body)
		return err
	},
	"an event stream": func(a *App, c Caller, _ Body) error {
		_, err := a.openEvents(context.Background(), c, "topic=a")
		return err
	},
	"a WebSocket": func(a *App, c Caller, _ Body) error {
		_, err := a.connect(context.Background(), c, "")
		return err
	},
	"a WebSocket of a session without a name": func(a *App, c Caller, _ Body) error {
		_, err := a.connect(context.Background(), c, "session=")
		return err
	},
	"a TCP connection": func(a *App, c Caller, _ Body) error {
		err := a.connectByItem(context.Background(), c, cbor.AppendFromJSON(nil, []byte(`{}`)))
		return err
	},
}

// Callers without credentials who may do nothing cannot fill the daemon with sessions. They are
// refused before their body is read.
func TestNobodyWithoutAnyRightOpensASession(t *testing.T) {
	guard(t, func(g *guarded) {
		for name, open := range openings {
			err := open(g.App, Caller{}, func(int) ([]byte, error) {
				require.Fail(t, "the body was read", name)
				return nil, nil
			})
			require.ErrorIs(t, err, problem.New(wire.CodeUnauthorized, "", ""), name)
		}
		list := g.cfg.Sessions.List(10, session.ByLag, time.Now())
		require.Zero(t, list.Open+list.Stateless)

		id := g.open(g.token("t", time.Hour, "a", auth.Subscribe), "a")
		g.connect(Caller{}, id)
		err := g.connectByItem(g.Context(), Caller{}, cbor.AppendFromJSON(nil, []byte(`{"ack":0,"session":"`+id+`"}`)))
		require.NoError(t, err, "the id is enough")
		_, err = g.openEvents(g.Context(), Caller{}, "ack=0&session="+id)
		require.NoError(t, err, "the id is enough")
	})
}

// Clients need a certificate to connect, but it gives them no rights. With a session's id they
// may do what its id permits.
func TestACertificateThatIdentifiesNobodyIsNotOfAnotherPrincipal(t *testing.T) {
	guard(t, func(g *guarded) {
		id := g.open(g.token("t", time.Hour, "a", auth.Subscribe), "a")
		c := Caller{Credentials: auth.Credentials{Certificate: &tls.ConnectionState{}}}
		d := g.connect(c, id)
		require.NoError(t, g.command(d, `{"ack":0}`))
		require.ErrorIs(t, g.command(d, `{"subscribe":["a"]}`), problem.New(wire.CodeUnauthorized, "", ""))
		require.ErrorIs(t, g.patch(c, id, "{}"), problem.New(wire.CodeUnauthorized, "", ""))
	})
}

// Callers without credentials who may publish get a connection, to publish on it.
func TestAnyRightOpensASession(t *testing.T) {
	g := newGuarded(t, `[{"topics":["inbox"],"allow":["publish"]}]`)
	d, err := g.App.connect(t.Context(), Caller{}, "")
	require.NoError(t, err)
	defer g.End(d.Session)
	require.NoError(t, g.command(d, `{"publish":{"topic":"inbox","data":1}}`))
}

// A revocation ends sessions itself: no time passes until their polls have their answers, and no
// sweeper runs.
func TestARevocationEndsSessionsAtOnce(t *testing.T) {
	guard(t, func(g *guarded) {
		c, other := g.token("t", time.Hour, ">", auth.Subscribe), g.token("other", time.Hour, ">", auth.Subscribe)
		ended := make(chan error, 3)
		poll := func(s *session.Session) {
			go func() {
				p := &session.Reader{}
				err := p.Begin(s, 0, session.AcksNext, session.Arrival{}, time.Now())
				if err == nil {
					_, err = p.Take(g.Context(), frame.Limit{Frames: 1, Bytes: 1}, time.Minute)
					p.Done(time.Now())
				}
				ended <- err
			}()
			synctest.Wait()
		}
		id, others := g.open(c, "a"), g.open(other, "a")
		s, err := g.cfg.Sessions.Get([]byte(id))
		require.NoError(t, err)
		poll(s)
		s, err = g.openEvents(t.Context(), c, "topic=a")
		require.NoError(t, err)
		poll(s)
		d, err := g.App.connect(t.Context(), c, "topic=a")
		require.NoError(t, err)
		poll(d.Session)
		require.Empty(t, ended)

		before := time.Now()
		require.Equal(t, 3, g.revoke("t").Ended)
		for range cap(ended) {
			require.Error(t, <-ended)
		}
		require.Equal(t, before, time.Now(), "nobody waited for a timer")
		_, err = g.cfg.Sessions.Get([]byte(id))
		require.ErrorIs(t, err, problem.New(wire.CodeSessionEnded, "", ""))
		require.Equal(t, []string{"a"}, g.topicsOf(others))
	})
}
