package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/loadtest/soak"
)

func soakCommand() *cobra.Command {
	cfg := soak.Default()
	var out output
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Prove that nothing is lost silently while everything goes wrong",
		Long: `Start a server and let everything go wrong around it: connections are cut at
random bytes, delayed and reset, subscribers come, go, read slowly and change their
topics, acks repeat, and the server is stopped, killed and started again; and of some
topics it asks an application, which this process runs, about each message. A few
publishers reach its limits, and must be served once they come as told. Afterwards
every subscriber must have had every message exactly once and in order, or have been
told of a gap that is exactly right.

With --store the server has a log on disk, and histories of an hour. Then most
servers are killed, some while they start. Publishers send idempotency keys, and
publish again when an answer was lost. After a kill, no message may be missing, and
the epoch must be the same.

The exit code is 0 if all promises were kept, 1 if the soak could not be run, 2 for a
command line with errors, and 3 if a promise was not kept. Ctrl-C ends it early,
with its report.`,
		Example: `  pubsubd loadtest soak --duration 2m --seed 7
  pubsubd loadtest soak --store=always --restart 5s`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return runSoak(cfg, &out) },
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.Duration, "duration", cfg.Duration, "how long everything goes wrong")
	f.DurationVar(&cfg.Settle, "settle", cfg.Settle, "how long subscribers may take at the end to have everything")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "of the random choices; the same makes the same")
	f.IntVar(&cfg.Topics, "topics", cfg.Topics, "topics")
	f.IntVar(&cfg.Subscribers, "subscribers", cfg.Subscribers, "subscribers at a time")
	f.IntVar(&cfg.Publishers, "publishers", cfg.Publishers, "publishers")
	f.Float64Var(&cfg.Rate, "rate", cfg.Rate, "messages a second, beside bursts")
	f.StringVar(&cfg.Store, "store", "", "give the server a log on disk with this sync `mode`, always, 1s or never; --store alone is 1s")
	f.Lookup("store").NoOptDefVal = "1s"
	oneOf(cmd, "store", "always", "1s", "never")
	f.DurationVar(&cfg.Restart, "restart", cfg.Restart, "how long each server runs, on average")
	out.bind(f)
	return cmd
}

// runSoak runs a soak, shows its result, and returns what the process exits with.
func runSoak(cfg soak.Config, out *output) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := out.open(); err != nil {
		return usageError{err}
	}
	defer out.close()
	cfg.ServerCommand = []string{self, "serve"}
	ctx, stop := untilSignal()
	defer stop()
	result, err := soak.Run(ctx, cfg, out.say)
	if fault, ok := errors.AsType[soak.ConfigError](err); ok {
		return usageError{fault}
	}
	if result == nil {
		return err
	}
	if failure := out.show(result, result.Text); failure != nil {
		return errors.Join(err, failure)
	}
	if code := result.ExitCode(); code != 0 {
		return exitError{code}
	}
	return err
}

// say shows a line of progress.
func (o *output) say(line string) {
	if !o.quiet {
		fmt.Fprintln(os.Stderr, line)
	}
}
