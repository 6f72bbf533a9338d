package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/daemon"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   serveName,
		Short: "Run the daemon",
		Long: `Run the daemon until SIGTERM or SIGINT. Then drain: let clients leave within the drain
window. A second signal ends the daemon at once. With --store, topics and positions
survive restarts and crashes; with --store-sync=stop, only planned restarts. On SIGHUP,
the daemon reads its settings and certificates again. It applies the changes that need no
restart, without closing connections, and logs errors and changes that need a restart.

Every setting is a flag, an environment variable PUBSUBD_…, and a key in the file that
--config names. A flag overrides a variable, and a variable overrides the file.`,
		Args: usageArgs(cobra.NoArgs),
	}
	loader := config.Bind(cmd.Flags())
	groupSettings(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		return serve(func() (config.Config, error) {
			loaded, err := loader.Load(os.Environ())
			return loaded.Config, err
		})
	}
	return cmd
}

func serve(load func() (config.Config, error)) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	ctx, stop := untilSignal(syscall.SIGTERM, os.Interrupt)
	defer stop()
	cfg, err := load()
	if err != nil {
		return usageError{err}
	}
	log := daemon.NewLog(os.Stderr, cfg.Log, versionText())
	defer log.Close()
	defer zap.RedirectStdLog(log.Logger)() // net/http's client has no other log

	d, err := daemon.Start(ctx, cfg, log)
	if err != nil {
		return err
	}
	over := make(chan struct{})
	var reloads sync.WaitGroup
	defer reloads.Wait()
	defer close(over)
	reloads.Go(func() { reloadOn(hangups, over, func() { d.Reload(load) }) })
	return d.Run(ctx)
}

// reloadOn reloads at each signal, until it is over.
func reloadOn(hangups <-chan os.Signal, over <-chan struct{}, reload func()) {
	for {
		select {
		case <-hangups:
			reload()
		case <-over:
			return
		}
	}
}
