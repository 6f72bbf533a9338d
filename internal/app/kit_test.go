package app

import (
	"testing"
	"time"

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
