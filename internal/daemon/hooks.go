package daemon

import (
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// hooks are the daemon's hooks. Each has its own gate: a slow application takes no slots
// from calls without its hook.
type hooks struct {
	publish        *hook.Publishes
	publishCalls   *limit.Gate
	authorize      *hook.Subscriptions
	authorizeCalls *limit.Gate
	events         *hook.Events
}

func newHooks(cfg config.Config, limits limit.Config, topics hook.Topics, m *metrics.Metrics, log *zap.Logger) hooks {
	var h hooks
	publish, authorize := hookWaiting(limits)
	h.publishCalls = limit.NewGate("hooks.publish", "hooks.publish.calls", cfg.PublishHook.Calls, publish, limits.Wait, m)
	h.publish = hook.NewPublishes(hookConfig(cfg), h.publishCalls, m, log)
	h.authorizeCalls = limit.NewGate("hooks.authorize", "hooks.authorize.calls", cfg.AuthorizeHook.Calls, authorize, limits.Wait, m)
	h.authorize = hook.NewSubscriptions(cfg.AuthorizeHook, h.authorizeCalls, m, log)
	h.events = hook.NewEvents(cfg.EventsHook, topics, m, log)
	return h
}

func (h *hooks) reload(cfg config.Config, limits limit.Config) {
	publish, authorize := hookWaiting(limits)
	h.publishCalls.Set(cfg.PublishHook.Calls, publish, limits.Wait)
	h.publish.Reload(hookConfig(cfg))
	h.authorizeCalls.Set(cfg.AuthorizeHook.Calls, authorize, limits.Wait)
	h.authorize.Reload(cfg.AuthorizeHook)
	h.events.Reload(cfg.EventsHook)
}

// hookWaiting returns how many calls may wait for each hook: half and a quarter of
// limits.calls. Each holds one of limits.calls while it waits, so some stay for others.
func hookWaiting(l limit.Config) (publish, authorize int) {
	return min(l.WaitingCalls, max(1, l.Calls/2)), min(l.WaitingCalls, max(1, l.Calls/4))
}

// hookConfig returns the publish hook's settings, which cfg has in two places.
func hookConfig(cfg config.Config) hook.Config {
	c := cfg.PublishHook
	c.MessageBytes = cfg.MessageBytes
	return c
}
