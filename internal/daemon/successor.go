package daemon

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/durable"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/observe"
)

// A Log is the log and the metrics of one daemon, which outlast it: the log counts what it
// drops. The owner calls Close at the end.
type Log struct {
	*observe.Log
	metrics *metrics.Metrics
}

// NewLog returns a log that is written to a file such as os.Stderr.
func NewLog(to io.Writer, cfg config.Log, version string) *Log {
	m := metrics.New(version)
	return &Log{observe.NewLog(to, cfg.Format, m.LogDropped), m}
}

// Start calls New and Listen. It takes the sockets that the service manager passes. With
// listen.reuseport it first listens beside the daemon that runs, so that no connection is
// refused when that ends, and waits until that daemon releases its files.
func Start(ctx context.Context, cfg config.Config, log *Log) (d *Daemon, err error) {
	sockets, err := listen.Inherit()
	if err != nil {
		return nil, err
	}
	defer sockets.Close() // those that no listener has taken
	if cfg.Listen.ReusePort {
		if err := succeed(ctx, cfg, sockets, log.Logger); err != nil {
			return nil, err
		}
	}
	if d, err = New(cfg, log.Logger, log.metrics); err != nil {
		return nil, err
	}
	log.metrics.GatherProcess() // not in New: a test has many daemons in one process, and asks for metrics often
	d.listeners.sockets = sockets
	return d, d.Listen()
}

// succeed binds the sockets that are not passed, and waits for the files of cfg.
func succeed(ctx context.Context, cfg config.Config, sockets listen.Sockets, log *zap.Logger) error {
	for name, address := range map[string]string{
		"public": cfg.Listen.Public, "admin": cfg.Listen.Admin, "tcp": cfg.Listen.TCP, "acme": cfg.Listen.ACME,
	} {
		if address == "" || sockets[name] != nil {
			continue
		}
		if err := sockets.BindBeside(name, address); err != nil {
			return err
		}
	}
	for _, path := range exclusive(cfg) {
		err := durable.Await(ctx, path, func() {
			log.Info("listening, and waiting until the daemon that runs releases a file: stop that daemon now", zap.String("file", path))
		})
		if err != nil {
			return fmt.Errorf("told to stop before %s was released: %w", path, err)
		}
	}
	return nil
}

// exclusive returns the files that only one daemon has at a time.
func exclusive(cfg config.Config) (paths []string) {
	if cfg.Store.Dir != "" {
		paths = append(paths, filepath.Join(cfg.Store.Dir, "store"))
	}
	if cfg.Auth.Revocations != "" {
		paths = append(paths, cfg.Auth.Revocations)
	}
	return paths
}
