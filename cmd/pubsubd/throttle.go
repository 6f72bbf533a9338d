package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

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
		Short: "Measure how limits treat more users than the server serves at a time",
		Long: `Run users in closed loops, with limits of sessions and calls in force. The test repeats
an article's measurement of service throttling in WCF. Each user calls an operation that
takes --call-time, again and again. A call is a publish that passes the publish hook,
whose back end this process runs. Each user publishes within its own session, and polls
that session for its own messages. A refused user retries when the refusal says so.

The test starts a server for each of --settings (limits.sessions/limits.calls). The table
shows how many calls were completed within --duration, and with those in flight at its
end. It shows how long calls took from the user's first attempt, waiting and refusals
included, and how long the unfinished calls had waited. After --duration, refused
requests are not retried.

The exit code is 3 if a request was neither admitted nor refused within --wait plus
--tolerance, if a message was lost, duplicated, out of order or did not pass the hook, or
if the time of calls exceeds --max-mean or --max-p95.

--step starts users in steps. --think adds pauses between calls, exponentially
distributed around the given mean; --seed repeats the pauses. --calls-per-session ends
sessions, so that users share few of them.

--search finds the lowest limits.calls with the best throughput for which --max-mean or
--max-p95 holds. In a search, both limit the time in service, from the call of the back
end: the wait before it depends on the number of users. With --backend-workers, the back
end serves that many calls at a time, as real ones do, and queues the others. Without
it, a higher limit always gives more throughput.

A --target must have one of --settings in force, and its hook at --backend-listen. Both
sides need the same secret in the environment, PUBSUBD_HOOKS_PUBLISH_SECRET.`,
		Example: `  pubsubd loadtest throttle --html throttle.html
  pubsubd loadtest throttle --settings 100/100 --max-mean 5.05s
  pubsubd loadtest throttle --step 10/5s --think 1s --duration 2m
  pubsubd loadtest throttle --search --backend-workers 24 --max-mean 6s`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.StringSliceVar(&t.settings, "settings", t.settings, "limits.sessions/limits.calls of each run")
	f.IntVar(&t.cfg.Users, "users", t.cfg.Users, "users, each in a closed loop")
	f.DurationVar(&t.cfg.Duration, "duration", t.cfg.Duration, "time during which users begin calls")
	f.DurationVar(&t.cfg.CallTime, "call-time", t.cfg.CallTime, "time of a call in the back end")
	f.DurationVar(&t.cfg.Wait, "wait", t.cfg.Wait, "limits.wait: time within which a request is admitted or refused")
	f.DurationVar(&t.cfg.Tolerance, "tolerance", t.cfg.Tolerance, "time by which --wait may be exceeded")
	f.IntVar(&t.cfg.PendingSessions, "pending-sessions", t.cfg.PendingSessions, "limits.pending_sessions")
	f.IntVar(&t.cfg.WaitingCalls, "waiting-calls", t.cfg.WaitingCalls, "limits.waiting_calls")
	f.DurationVar(&t.cfg.Think, "think", t.cfg.Think, "mean pause of a user between calls, exponentially distributed")
	f.Uint64Var(&t.cfg.Seed, "seed", t.cfg.Seed, "seed of the pauses; the same seed makes the same pauses")
	f.StringVar(&t.step, "step", "", "USERS/DURATION: begin with this number of users, and add as many after each DURATION")
	f.IntVar(&t.cfg.CallsPerSession, "calls-per-session", t.cfg.CallsPerSession, "calls after which a user opens another session; 0 means never")
	f.IntVar(&t.cfg.BackendWorkers, "backend-workers", t.cfg.BackendWorkers, "calls that the back end serves at a time; 0 means all")
	f.StringVar(&t.cfg.Backend, "backend-listen", t.cfg.Backend, "host:port of the back end")
	f.DurationVar(&t.cfg.MaxMean, "max-mean", 0, "mean time of calls above which the exit code is 3; with --search, of calls in service")
	f.DurationVar(&t.cfg.MaxP95, "max-p95", 0, "as --max-mean, for the 95th percentile")
	f.BoolVar(&t.search, "search", false, "find the limits.calls with the best throughput under the objective")
	f.StringVar(&t.cfg.Target, "target", "", "base URL or host:port of a running server; default: start one for each run")
	f.IntVar(&t.cfg.ServerPID, "server-pid", 0, "process id of the target on this machine, to measure its CPU time")
	f.StringVar(&t.svg, "svg", "", "write the charts to this file")
	f.StringVar(&t.html, "html", "", "write a page with tables and charts to this file")
	t.out.bind(f)
	cmd.RunE = func(*cobra.Command, []string) error {
		if t.search && f.Changed("settings") {
			return usageError{errors.New("--settings: has no effect with --search, which tries its own")}
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
	ctx, stop := untilSignal(endings()...)
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
		t.cfg.Secret = strings.TrimRight(os.Getenv(webhook.SecretVariable), "\r\n") // as the daemon reads it
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
