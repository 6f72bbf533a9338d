package daemon

import (
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A publishHook has a gate of its own: a slow application takes no slots from publishes
// without a hook. Its calls wait as others do.
type publishHook struct {
	*hook.Hook
	calls *limit.Gate
}

func newPublishHook(cfg config.Config, l limit.Config, m *metrics.Metrics, log *zap.Logger) *publishHook {
	calls := limit.NewGate("hooks.publish", "hooks.publish.calls", cfg.PublishHook.Calls, hookWaiting(l), l.Wait, m)
	return &publishHook{hook.New(hookConfig(cfg), calls, m, log), calls}
}

// hookWaiting is how many calls may wait for the hook. Each holds a slot of all calls
// meanwhile, so half of those stay for others.
func hookWaiting(l limit.Config) int { return min(l.WaitingCalls, max(1, l.Calls/2)) }

func (h *publishHook) reload(cfg config.Config, l limit.Config) {
	h.calls.Set(cfg.PublishHook.Calls, hookWaiting(l), l.Wait)
	h.Reload(hookConfig(cfg))
}

// hookConfig returns the publish hook's settings, which cfg has in two places.
func hookConfig(cfg config.Config) hook.Config {
	c := cfg.PublishHook
	c.MessageBytes = cfg.MessageBytes
	return c
}
