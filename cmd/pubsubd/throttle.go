package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/report"
	"github.com/pubsubd/pubsubd/loadtest/throttle"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
)

func throttleCommand() *cobra.Command {
	t := throttleTest{cfg: throttle.Default()}
	for _, s := range t.cfg.Settings {
		t.settings = append(t.settings, s.String())
	}
	cmd := &cobra.Command{
		Use:   "throttle",
		Short: "What the limits make of more users than are served at a time",
		Long: `Users in closed loops call an operation that takes --call-time, over and over, with
limits of sessions and calls in force, as the article on service throttling in WCF
measured it. A call is a publish that passes the publish hook, whose back end this
process runs; each user publishes within a session of its own, which polls what it
published. Who is refused comes again when it was told to.

For each of --settings (limits.sessions/limits.calls) a server is started. The table
says how many calls were completed within --duration, and with those under way at its
end, how long they took from when the user wanted them, waiting and refusals included,
and how long the others waited in vain. A refused request is not sent again when the
run is over.

It is a failure (exit code 3) if a request was neither let in nor refused within --wait
and --tolerance, if a message was lost, doubled or out of order or did not pass the
hook, or if the time of calls misses --max-mean or --max-p95.

--step lets users begin little by little. --think pauses between calls, exponentially
distributed about the given mean; --seed repeats the pauses. --calls-per-session ends
sessions, so that users share few of them.

--search finds the fewest limits.calls with the best throughput for which --max-mean or
--max-p95 holds. There they bound the time in service, from when the back end was asked:
how long users wait before that follows from how many they are. With --backend-workers
the back end serves so many calls at a time, as real ones do, and others wait in it;
without, it has no knee.

A --target must have one of --settings in force, and its hook at --backend-listen with
the secret that is in the environment, PUBSUBD_HOOKS_PUBLISH_SECRET, here too.`,
		Example: `  pubsubd loadtest throttle --html throttle.html
  pubsubd loadtest throttle --settings 100/100 --max-mean 5.05s
  pubsubd loadtest throttle --step 10/5s --think 1s --duration 2m
  pubsubd loadtest throttle --search --backend-workers 24 --max-mean 6s`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.StringSliceVar(&t.settings, "settings", t.settings, "limits.sessions/limits.calls of each run")
	f.IntVar(&t.cfg.Users, "users", t.cfg.Users, "users, each in a closed loop")
	f.DurationVar(&t.cfg.Duration, "duration", t.cfg.Duration, "how long users begin calls")
	f.DurationVar(&t.cfg.CallTime, "call-time", t.cfg.CallTime, "what a call takes in the back end")
	f.DurationVar(&t.cfg.Wait, "wait", t.cfg.Wait, "limits.wait: within which a request is let in or refused")
	f.DurationVar(&t.cfg.Tolerance, "tolerance", t.cfg.Tolerance, "by how much that may be late")
	f.IntVar(&t.cfg.PendingSessions, "pending-sessions", t.cfg.PendingSessions, "limits.pending_sessions")
	f.IntVar(&t.cfg.WaitingCalls, "waiting-calls", t.cfg.WaitingCalls, "limits.waiting_calls")
	f.DurationVar(&t.cfg.Think, "think", t.cfg.Think, "mean pause of a user between calls, exponentially distributed")
	f.Uint64Var(&t.cfg.Seed, "seed", t.cfg.Seed, "of the pauses; the same makes the same")
	f.StringVar(&t.step, "step", "", "USERS/DURATION: so many users at first, and as many more after each DURATION")
	f.IntVar(&t.cfg.CallsPerSession, "calls-per-session", t.cfg.CallsPerSession, "after how many calls a user opens another session; 0 is never")
	f.IntVar(&t.cfg.BackendWorkers, "backend-workers", t.cfg.BackendWorkers, "calls that the back end serves at a time; 0 is all")
	f.StringVar(&t.cfg.Backend, "backend-listen", t.cfg.Backend, "host:port of the back end")
	f.DurationVar(&t.cfg.MaxMean, "max-mean", 0, "mean time of calls above which the exit code is 3; of a search, of calls in service")
	f.DurationVar(&t.cfg.MaxP95, "max-p95", 0, "the same of their 95th percentile")
	f.BoolVar(&t.search, "search", false, "find the limits.calls with the best throughput under the objective")
	f.StringVar(&t.cfg.Target, "target", "", "base URL of a server that runs; without it one is started for each run")
	f.IntVar(&t.cfg.ServerPID, "server-pid", 0, "the target's process on this machine, for its CPU")
	f.StringVar(&t.svg, "svg", "", "write the charts to this file")
	f.StringVar(&t.html, "html", "", "write a page with tables and charts to this file")
	t.out.bind(f)
	cmd.RunE = func(*cobra.Command, []string) error {
		if t.search && f.Changed("settings") {
			return usageError{errors.New("--settings: has no meaning with --search, which tries others")}
		}
		return t.run()
	}
	return cmd
}

// A throttleTest is what the command line asks for.
type throttleTest struct {
	cfg       throttle.Config
	settings  []string
	step      string
	search    bool
	svg, html string
	out       output
}

func (t *throttleTest) run() error {
	if err := errors.Join(t.complete(), t.out.open(), tryFile("--svg", t.svg), tryFile("--html", t.html)); err != nil {
		return usageError{err}
	}
	defer t.out.close()
	ctx, stop := untilSignal()
	defer stop()
	progress := t.out.progress()
	code, err := t.measure(ctx, progress)
	if fault, ok := errors.AsType[throttle.ConfigError](err); ok {
		return usageError{fault}
	}
	if err != nil {
		return err
	}
	return exitWith(code)
}

// complete reads what flags say in words of their own, and adds what they do not say.
func (t *throttleTest) complete() error {
	var faults []error
	t.cfg.Settings = nil
	for _, text := range t.settings {
		s, err := throttle.ParseSetting(text)
		faults = append(faults, ofFlag("--settings", err))
		t.cfg.Settings = append(t.cfg.Settings, s)
	}
	step, err := throttle.ParseStep(t.step)
	t.cfg.Step = step
	self, selfErr := os.Executable()
	if t.cfg.Target == "" {
		t.cfg.ServerCommand = []string{self, "serve", "--log-level=warn"}
	} else {
		t.cfg.Secret = os.Getenv(webhook.SecretVariable)
	}
	return errors.Join(append(faults, ofFlag("--step", err), selfErr)...)
}

// ofFlag names the flag that an error is about.
func ofFlag(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// measure measures, shows what was found even if it is not all, and returns the
// verdict's exit code.
func (t *throttleTest) measure(ctx context.Context, p *report.Progress) (int, error) {
	if t.search {
		found, err := throttle.Search(ctx, t.cfg, p)
		return t.finish(found.Verdict.ExitCode, err, len(found.Trials), p, shown{
			found, func(w io.Writer) error { return report.ThrottleSearchTable(w, found) },
			report.ThrottleSearchCharts(found).SVG, func(w io.Writer) error { return report.ThrottleSearchHTML(w, found) },
		})
	}
	r, err := throttle.Run(ctx, t.cfg, p)
	return t.finish(r.Verdict.ExitCode, err, len(r.Rows), p, shown{
		r, func(w io.Writer) error { return report.ThrottleTable(w, r) },
		report.ThrottleCharts(r).SVG, func(w io.Writer) error { return report.ThrottleHTML(w, r) },
	})
}

// shown are the forms of a result.
type shown struct {
	result           any
	table, svg, html func(io.Writer) error
}

// finish shows what was measured, if anything was.
func (t *throttleTest) finish(code int, err error, measured int, p *report.Progress, s shown) (int, error) {
	p.Finish()
	if measured == 0 {
		return loadtest.ExitFailed, err
	}
	return code, errors.Join(err, t.out.show(s.result, s.table), writeFile("--svg", t.svg, s.svg), writeFile("--html", t.html, s.html))
}
