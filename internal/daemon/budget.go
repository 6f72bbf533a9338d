package daemon

import (
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
)

// memoryLimit is the collector's (GOMEMLIMIT); math.MaxInt64: none.
func memoryLimit() int64 { return debug.SetMemoryLimit(-1) }

// fitted is what the broker is told, with a budget that fits the collector's limit if
// the settings leave that to the daemon: half, since clients and what is not collected
// yet take the rest.
func fitted(cfg config.Config, limit int64) broker.Config {
	b := cfg.Broker
	if b.MemoryBudget == 0 {
		b.MemoryBudget = int(min(broker.DefaultMemoryBudget, limit/2))
	}
	return b
}

// tellBudget logs what the collector's limit makes of the budget: less than usual, or
// one that was said and leaves too little for anything else. At 8/11 the collector is
// at ease (deploy/README.md).
func (d *Daemon) tellBudget(cfg config.Config, limit int64) {
	budget := int64(fitted(cfg, limit).MemoryBudget)
	sizes := []zap.Field{zap.Int64("budget", budget), zap.Int64("memory_limit", limit)}
	switch {
	case cfg.Broker.MemoryBudget == 0 && budget < broker.DefaultMemoryBudget:
		d.log.Info("memory.budget is half of GOMEMLIMIT", sizes...)
	case budget > limit/4*3:
		d.log.Warn("memory.budget takes more than three quarters of GOMEMLIMIT: when histories fill it they will be cut short; lower one or raise the other", sizes...)
	}
}
