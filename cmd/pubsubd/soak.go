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
		Short: "Prove that no message is lost silently while everything goes wrong",
		Long: `Start a server and disturb it in every way. Connections are cut at random bytes, delayed
and reset. Subscribers come, go, read slowly, change their topics and repeat acks. The
server is stopped, killed and started again. For some topics it asks an application,
which this process runs, about each message. A few publishers reach its limits, and
must be served if they retry as they are told. In the end, every subscriber must have
every message exactly once and in order, or a gap frame that is exactly right.

With --store, the server has a log on disk, and histories of an hour. Most servers are
then killed, some while they start. Publishers send idempotency keys, and retry when an
answer is lost. After a kill, no message may be missing, and the epoch must be the same.

The exit code is 0 if all promises were kept, 1 if the soak could not run, 2 for a wrong
command line, and 3 if a promise was broken. Ctrl-C ends the soak early, with its
report.`,
		Example: `  pubsubd loadtest soak --duration 2m --seed 7
  pubsubd loadtest soak --store=always --restart 5s`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return runSoak(cfg, &out) },
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.Duration, "duration", cfg.Duration, "time during which everything goes wrong")
	f.DurationVar(&cfg.Settle, "settle", cfg.Settle, "time at the end for subscribers to receive everything")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of the random choices; the same seed makes the same choices")
	f.IntVar(&cfg.Topics, "topics", cfg.Topics, "topics")
	f.IntVar(&cfg.Subscribers, "subscribers", cfg.Subscribers, "subscribers at a time")
	f.IntVar(&cfg.Publishers, "publishers", cfg.Publishers, "publishers")
	f.Float64Var(&cfg.Rate, "rate", cfg.Rate, "messages a second, apart from bursts")
	f.StringVar(&cfg.Store, "store", "", "give the server a log on disk with this sync `mode`: always, 1s or never; --store alone means 1s")
	f.Lookup("store").NoOptDefVal = "1s"
	oneOf(cmd, "store", "always", "1s", "never")
	f.DurationVar(&cfg.Restart, "restart", cfg.Restart, "average lifetime of each server")
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
	ctx, stop := untilSignal(endings()...)
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
