package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/report"
	"github.com/pubsubd/pubsubd/loadtest/scenarios"
)

func loadtestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "loadtest",
		Short: "Measure how many clients a server holds",
		Long: `Measure a server over the network: how many clients it holds, how fast messages
reach them, and whether messages were lost, duplicated or out of order.

Without --target, the test starts a server on this machine, with the settings that
serve would have here. The exit code is 0 for success, 1 if the test failed to run,
2 for a wrong command line, 3 if an objective was missed (loss, duplicates, disorder,
late bursts, --max-p99), and 4 if the load generator was the bottleneck.

A --preset or a --scenario file has several tests. They run one after the other, each
with its own server. The report shows the figures of another system beside ours. If
one test fails, the others still run; the exit code is that of the worst. The report
states what --rounds, --bursts, --duration or --warmup have shortened.`,
		Example: `  pubsubd loadtest broadcast --clients 5000 --period 1s --bursts 100
  pubsubd loadtest --preset silverlight3 --rounds 5
  pubsubd loadtest --scenario mine.yaml --html mine.html`,
		Args: usageArgs(cobra.NoArgs),
	}
	var suite suiteTest
	suite.bind(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return suite.run(cmd) }
	cmd.AddCommand(broadcastCommand(), collabCommand(), scenariosCommand(), agentCommand(), soakCommand(), transportsCommand(), encodingCommand(), throttleCommand())
	for _, c := range append(cmd.Commands(), cmd) {
		bindWords(c, "preset", scenarios.Names())
		bindWords(c, "dialect", client.Dialects())
		bindWords(c, "mode", client.Modes())
		bindWords(c, "transport", client.Transports())
		bindWords(c, "format", client.Formats())
	}
	return cmd
}

// bindWords is oneOf for a flag that only some load tests have.
func bindWords[T ~string](cmd *cobra.Command, flag string, words []T) {
	if cmd.Flags().Lookup(flag) != nil {
		oneOf(cmd, flag, words...)
	}
}

func collabCommand() *cobra.Command {
	rounds, steady := loadtest.DefaultCollab(), loadtest.DefaultSteady()
	var out output
	var pattern, preset string
	cmd := &cobra.Command{
		Use:   "collab",
		Short: "Measure many topics with few clients each, which publish to each other",
		Long: `Measure many topics with few clients each.

--pattern rounds: in every topic, one client publishes, in all topics at the same
moment. When the others have received the message, the topic pauses for --delay. Each
topic does --rounds rounds, independently of the others. Latency counts for the
receivers, not for the publisher.

--pattern steady: every client publishes ten bytes every --period, to all clients of
the topic, itself included. The test records --duration, after --warmup.`,
		Example: `  pubsubd loadtest collab --topics 500 --clients-per-topic 2 --delay 1s --rounds 100
  pubsubd loadtest collab --pattern steady --topics 200 --period 1s`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.StringVar(&preset, "preset", "", "run a preset, as loadtest --preset: "+strings.Join(scenarios.Names(), ", "))
	f.StringVar(&pattern, "pattern", "rounds", "rounds or steady")
	loadtest.BindTopics(f, &rounds.Topics, &rounds.ClientsPerTopic)
	loadtest.BindRounds(f, &rounds)
	loadtest.BindSteady(f, &steady)
	loadtest.BindCommon(f, &rounds.Common)
	loadtest.BindVoices(f, &rounds.Common)
	loadtest.BindCrew(f, &rounds.Crew) // steady alone can be divided; the check says so
	out.bind(f)
	oneOf(cmd, "pattern", "rounds", "steady")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if preset != "" {
			suite, err := presetOf(f, preset, rounds.Common, out)
			if err != nil {
				return err
			}
			return suite.run(cmd)
		}
		if err := checkPattern(cmd.Flags(), pattern); err != nil {
			return usageError{err}
		}
		if err := completeCrew(&rounds.Crew); err != nil {
			return err
		}
		return out.measure(&rounds.Common, func(ctx context.Context, p loadtest.Progress) (loadtest.Result, error) {
			if pattern == "rounds" {
				return loadtest.RunCollab(ctx, rounds, p)
			}
			steady.Common, steady.Topics, steady.ClientsPerTopic = rounds.Common, rounds.Topics, rounds.ClientsPerTopic
			return loadtest.RunSteady(ctx, steady, p)
		})
	}
	return cmd
}

// checkPattern refuses flags that the pattern would ignore.
func checkPattern(f *pflag.FlagSet, pattern string) error {
	foreign := map[string][]string{
		"rounds": {"period", "warmup", "duration"},
		"steady": {"delay", "rounds", "round-timeout"},
	}
	for _, name := range foreign[pattern] {
		if f.Changed(name) {
			return fmt.Errorf("--%s has no effect with --pattern %s", name, pattern)
		}
	}
	return nil
}

// measure runs a test, shows its result, and returns what the process exits with.
func (o *output) measure(c *loadtest.Common, run func(context.Context, loadtest.Progress) (loadtest.Result, error)) error {
	if err := o.open(); err != nil {
		return usageError{err}
	}
	defer o.close()
	if err := completeServer(c); err != nil {
		return err
	}
	ctx, stop := untilSignal(endings()...)
	defer stop()
	progress := o.progress()
	result, err := run(ctx, progress)
	progress.Finish()
	if fault, ok := errors.AsType[loadtest.ConfigError](err); ok {
		return usageError{fault}
	}
	if result.Scenario == "" {
		return err
	}
	table := func(w io.Writer) error { return report.Table(w, result) }
	if err := errors.Join(err, o.show(result, table)); err != nil {
		return err
	}
	return exitWith(loadtest.ExitCode(result))
}

// completeServer has a server started for a test that names none.
func completeServer(c *loadtest.Common) error {
	if c.Target != "" {
		return nil
	}
	self, err := os.Executable()
	c.ServerCommand = []string{self, "serve", "--log-level=warn"}
	return err
}
