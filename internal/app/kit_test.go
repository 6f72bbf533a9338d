package app

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// newApp returns an App that allows everything. how changes its Config.
func newApp(t *testing.T, how ...func(*Config)) *App {
	m := metrics.New("test")
	b := broker.New(broker.Config{}, m, time.Now())
	t.Cleanup(b.Close)
	cfg := Config{
		Broker: b, Sessions: session.NewRegistry(session.Config{}, b, m), Authority: auth.Open{},
		Limiter: limit.New(limit.Config{}, m), Hook: hook.NewPublishes(hook.Config{}, nil, m, zap.NewNop()), Authorize: hook.NewSubscriptions(hook.AuthorizeConfig{}, nil, m, zap.NewNop()), Metrics: m, Log: zap.NewNop(),
		Limits: wire.Limits{MessageBytes: 64 << 10},
	}
	for _, change := range how {
		change(&cfg)
	}
	return New(cfg)
}

// permitting is an authority that gives every caller the same grant.
type permitting struct {
	auth.Open
	*auth.Grant
}

// permit returns a permitting authority with rights, as in a token's claim.
func permit(t *testing.T, subject, rights string) permitting {
	parsed, err := auth.ParseRights([]byte(rights), subject)
	require.NoError(t, err)
	return permitting{Grant: &auth.Grant{Subject: subject, Rights: parsed}}
}

func (p permitting) Identify(auth.Credentials, bool) (*auth.Grant, error) { return p.Grant, nil }

// A posting is a publish over HTTP.
type posting struct {
	Topic, Query                string
	ContentType, IdempotencyKey Header
	Payload                     []byte
	Body                        Body // instead of Payload, unless it is nil
}

func (p posting) head() Head { return Head{p.Topic, p.Query, p.ContentType, p.IdempotencyKey} }

// begin begins a publish, and returns its message.
func (a *App) begin(ctx context.Context, c Caller, p posting) (begun Publish, m *Message, err error) {
	if begun, err = a.BeginPublish(ctx, c, p.Topic); err != nil {
		return begun, nil, err
	}
	if m, err = MessageOf(p.head()); err != nil {
		return begun, nil, err
	}
	body := p.Payload
	if p.Body != nil {
		if body, err = p.Body(a.Limits().MessageBytes); err != nil {
			return begun, nil, err
		}
	}
	return begun, m, m.SetPayload(body, a.Limits().MessageBytes)
}

// post publishes, and waits for the result.
func (a *App) post(ctx context.Context, c Caller, p posting) (wire.Published, error) {
	begun, m, err := a.begin(ctx, c, p)
	if err != nil {
		return wire.Published{}, err
	}
	return begun.Await(m)
}
