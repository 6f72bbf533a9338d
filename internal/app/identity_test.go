package app

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// names is an authority that takes a token for the subject, with public claims.
type names struct{ auth.Open }

func (names) Identify(c auth.Credentials, _ bool) (*auth.Grant, error) {
	if c.Token == "" {
		return auth.Anyone, nil
	}
	return &auth.Grant{Subject: c.Token, Claims: []byte(`{"name":"` + c.Token + `"}`), Rights: auth.Everything}, nil
}

// anEditor is a hook that changes every message.
type anEditor struct{}

func (anEditor) Publish(_ context.Context, by hook.Principal, m *wire.Message, _ time.Duration, take func(*wire.PublishItem) error) error {
	if m.By != "" || m.Claims != nil {
		return problem.New(wire.CodeHookFailed, "", "the hook sees an identity that is not in force yet")
	}
	if by.Subject != "" && string(by.Claims) != `{"name":"`+by.Subject+`"}` {
		return problem.New(wire.CodeHookFailed, "", "the hook does not learn the publisher's public claims")
	}
	return take(&wire.PublishItem{Data: []byte(`"edited"`)})
}

// A listener is an authorize hook that remembers who asked.
type listener struct{ by []hook.Principal }

func (*listener) Selects([]wire.Start) bool { return true }

func (l *listener) Authorize(_ context.Context, s hook.Subscribing) error {
	l.by = append(l.by, s.Principal)
	return nil
}

// The authorize hook learns the public claims of a subscriber, as the publish hook does.
func TestTheHookLearnsThePublicClaimsOfASubscriber(t *testing.T) {
	l := &listener{}
	a := newApp(t, func(c *Config) { c.Authority, c.Authorize = names{}, l })
	for _, token := range []string{"alice", ""} {
		_, err := a.openSession(t.Context(), by(token), func(int) ([]byte, error) { return []byte(`{"topics":["a"]}`), nil })
		require.NoError(t, err)
	}
	require.Equal(t, []hook.Principal{{Subject: "alice", Claims: []byte(`{"name":"alice"}`)}, {}}, l.by)
}

// newIdentifyingApp returns an App that tells who published on the topics id.>, and asks
// a hook about id.edited.
func newIdentifyingApp(t *testing.T) *App {
	return newApp(t, func(c *Config) {
		c.Authority, c.Hook = names{}, anEditor{}
		c.Broker.Reload(broker.Config{Rules: []broker.Rule{{Name: "r", Pattern: "id.>", Identity: true}}, HookTopics: []string{"id.edited"}}, time.Now())
	})
}

// newest returns the last message of a topic.
func newest(t *testing.T, a *App, topic string) *wire.Message {
	t.Helper()
	frames, from := a.cfg.Broker.ReadTopic(wire.Start{Topic: topic, From: wire.FromOldest}, frame.Limit{Frames: 100, Bytes: 1 << 20}, time.Now())
	require.NotZero(t, from)
	return frames[len(frames)-1].Message()
}

func by(token string) Caller { return Caller{Credentials: auth.Credentials{Token: token}} }

func publishAs(t *testing.T, a *App, token string, p posting) wire.Published {
	t.Helper()
	p.ContentType = request.HeaderOf([]string{"application/json"})
	published, err := a.post(t.Context(), by(token), p)
	require.NoError(t, err)
	return published
}

func TestAMessageTellsItsVerifiedPublisher(t *testing.T) {
	a := newIdentifyingApp(t)
	for _, tt := range []struct{ token, topic, by, claims string }{
		{"alice", "id.a", "alice", `{"name":"alice"}`},
		{"alice", "id.edited", "alice", `{"name":"alice"}`},
		{"", "id.a", "", ""},
		{"", "id.edited", "", ""},
		{"alice", "other", "", ""},
	} {
		publishAs(t, a, tt.token, posting{Topic: tt.topic, Payload: []byte("1")})
		m := newest(t, a, tt.topic)
		require.Equal(t, tt.by, m.By, "%+v", tt)
		require.Equal(t, tt.claims, string(m.Claims), "%+v", tt)
	}
	require.Equal(t, `"edited"`, string(newest(t, a, "id.edited").Data))
}

// A publisher that states an identity gets the error for an unknown parameter.
func TestNobodyCanStateAnIdentityInAQuery(t *testing.T) {
	_, err := newIdentifyingApp(t).post(t.Context(), by("alice"), posting{Topic: "id.a", Query: "by=bob", ContentType: request.HeaderOf([]string{"application/json"}), Payload: []byte("1")})
	require.ErrorContains(t, err, "no parameter")
}

// The identity is not part of what an idempotency key stands for: a retry after the rule
// changed gets the first answer.
func TestARetryGetsTheFirstAnswerWhateverTheIdentity(t *testing.T) {
	a := newIdentifyingApp(t)
	p := posting{Topic: "id.a", Payload: []byte("1"), IdempotencyKey: request.HeaderOf([]string{"k"})}
	first := publishAs(t, a, "alice", p)
	a.cfg.Broker.Reload(broker.Config{}, time.Now())
	require.Equal(t, first, publishAs(t, a, "alice", p))
	require.Equal(t, "alice", newest(t, a, "id.a").By, "a held message keeps its identity")
	require.NotEqual(t, first, publishAs(t, a, "bob", p), "keys are of one principal")
}
