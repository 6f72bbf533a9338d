package app

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Four callers of one address fill each queue. The caller of another address gets a place.
func TestNoAddressFillsAQueueForOthers(t *testing.T) {
	open := func(a *App, ctx context.Context, c Caller) error {
		_, err := a.openSession(ctx, c, func(int) ([]byte, error) { return []byte(`{"topics":["asked"]}`), nil })
		return err
	}
	publish := func(a *App, ctx context.Context, c Caller) error {
		_, err := a.post(ctx, c, posting{Topic: "asked", Payload: []byte("1"), ContentType: request.HeaderOf([]string{"application/json"})})
		return err
	}
	cfg := hook.Config{URL: "http://127.0.0.1:1/", Secret: "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}
	for name, way := range map[string]struct {
		queue func(*Config, *limit.Gate)
		call  func(*App, context.Context, Caller) error
	}{
		"sessions": {func(c *Config, g *limit.Gate) {
			c.Sessions = session.NewRegistry(session.Config{Slots: g}, c.Broker, c.Metrics)
		}, open},
		"hooks.authorize": {func(c *Config, g *limit.Gate) {
			c.Authorize = hook.NewSubscriptions(hook.AuthorizeConfig{Config: cfg, Topics: []string{">"}}, g, c.Metrics, zap.NewNop())
		}, open},
		"hooks.publish": {func(c *Config, g *limit.Gate) {
			c.Broker.Reload(broker.Config{HookTopics: []string{">"}}, time.Now())
			c.Hook = hook.NewPublishes(cfg, g, c.Metrics, zap.NewNop())
		}, publish},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := limit.NewGate("gate", "", 1, 4, time.Minute, metrics.New("test"))
				require.NoError(t, gate.Enter(t.Context(), nil))
				a := newApp(t, func(c *Config) { way.queue(c, gate) })
				ctx, leave := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer leave()
				call := func(of string) <-chan error {
					over := make(chan error, 1)
					go func() { over <- way.call(a, ctx, Caller{Who: a.cfg.Limiter.WhoAt(netip.MustParseAddr(of))}) }()
					synctest.Wait()
					return over
				}
				var newest <-chan error
				for range 4 {
					newest = call("192.0.2.1")
				}
				require.Equal(t, 4, gate.Gauge().Waiting)
				require.Empty(t, call("192.0.2.2"), "it waits")
				require.ErrorIs(t, <-newest, &wire.Problem{Code: wire.CodeOverloaded})
			})
		})
	}
}
