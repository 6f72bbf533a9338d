package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/daemon"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon until SIGTERM or SIGINT, and then let its clients leave in order
within the drain window. A second signal ends it at once. With --state its topics
and positions outlast a planned restart.

Every setting is a flag here, a variable PUBSUBD_… in the environment, and a key in
the file that --config names. The first of these that has it counts.`,
		Args: usageArgs(cobra.NoArgs),
	}
	loader := bind(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		cfg, err := loader.Load(os.Environ())
		if err != nil {
			return usageError{err}
		}
		return serve(cfg)
	}
	return cmd
}

func serve(cfg config.Config) error {
	log, err := newLogger(cfg.Log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // a terminal cannot be synced, and says so
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // from then on a signal ends the process at once

	d, err := daemon.New(cfg, log, versionText())
	if err != nil {
		return err
	}
	if err := d.Listen(); err != nil {
		return err
	}
	return d.Run(ctx)
}

// newLogger logs to standard error, in the form that cfg says.
func newLogger(cfg config.Log) (*zap.Logger, error) {
	level, err := zap.ParseAtomicLevel(cfg.Level)
	if err != nil {
		return nil, err
	}
	c := zap.NewProductionConfig()
	c.Level = level
	c.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	c.EncoderConfig.EncodeDuration = zapcore.StringDurationEncoder
	c.DisableCaller, c.DisableStacktrace = true, true
	if cfg.Format == "console" {
		c.Encoding = "console"
		c.EncoderConfig.EncodeLevel = zapcore.CapitalLevelEncoder
	}
	return c.Build()
}
