// Package report shows load tests to people: a table of a Result, and how a test
// goes while it runs. It only reads what a Result says.
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// Table writes results of one scenario as plain text, one row each, with the
// columns that the articles have; then, for each, what was behind it and the
// verdict. The error is the writer's.
func Table(w io.Writer, results ...loadtest.Result) error {
	b := &strings.Builder{}
	writeRows(b, results)
	for i := range results {
		if len(results) > 1 {
			fmt.Fprintf(b, "\nRun %d\n", i+1)
		} else {
			b.WriteByte('\n')
		}
		writeDetails(b, &results[i])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeRows(b *strings.Builder, results []loadtest.Result) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, strings.Join([]string{
		"T", "N", "clients", pauseHeading(results), "mean ms", "median ms", "stdev ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms",
		"loss", "dup", "disorder", "",
	}, "\t"))
	for i := range results {
		fmt.Fprintln(t, strings.Join(row(&results[i]), "\t"))
	}
	_ = t.Flush() // a Builder takes everything
	fmt.Fprintf(b, "(T: topics, N: clients per topic, %s)\n", pauseMeaning(results))
}

func pauseMeaning(results []loadtest.Result) string {
	if pauseHeading(results) == "D s" {
		return "D: delay between rounds"
	}
	return "P: period"
}

// pauseHeading is D, the articles' rest, or P, the period.
func pauseHeading(results []loadtest.Result) string {
	if len(results) > 0 && results[0].Scenario == "collab" {
		return "D s"
	}
	return "P s"
}

func row(r *loadtest.Result) []string {
	p, l, d := &r.Parameters, &r.Latency, &r.Deliveries
	cells := []string{
		fmt.Sprint(p.Topics), fmt.Sprint(p.PerTopic), fmt.Sprint(p.Clients),
		fmt.Sprintf("%g", (p.PeriodMS+p.DelayMS)/1000),
	}
	for _, ms := range []float64{l.MeanMS, l.MedianMS, l.StdevMS, l.P90MS, l.P99MS, l.P999MS, l.MaxMS} {
		cells = append(cells, milliseconds(ms))
	}
	return append(cells, fmt.Sprint(d.Lost), fmt.Sprint(d.Duplicates), fmt.Sprint(d.Disordered), "")
}

// milliseconds keeps three digits that say something.
func milliseconds(ms float64) string {
	switch {
	case ms >= 100:
		return fmt.Sprintf("%.0f", ms)
	case ms >= 10:
		return fmt.Sprintf("%.1f", ms)
	case ms >= 1:
		return fmt.Sprintf("%.2f", ms)
	}
	return fmt.Sprintf("%.3f", ms)
}

// writeDetails writes one aligned line for each thing that there is to say.
func writeDetails(b *strings.Builder, r *loadtest.Result) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	p := &r.Parameters
	line("scenario", "%s, %s", r.Scenario, spoken(*p))
	line("target", "%s%s", r.Parameters.Target, startedText(r.Parameters.StartedServer))
	writeWork(r, line)
	writeServer(r, line)
	writeGenerator(r, line)
	e := r.Environment
	line("machine", "%d cores, GOMAXPROCS %d, %s %s/%s", e.Cores, e.GOMAXPROCS, e.GoVersion, e.OS, e.Arch)
	writeVerdict(r, line)
	_ = t.Flush() // a Builder takes everything
}

type lineWriter func(name, format string, args ...any)

// spoken describes how clients talk to the server.
func spoken(p loadtest.Parameters) string {
	if p.Dialect != client.Pubsubd {
		return "dialect " + p.Dialect
	}
	how := "mode " + p.Mode + ", " + sessions(p.Stateless)
	topics := " with %d topics each"
	if client.Transport(p.Mode).IsPushed() {
		how, topics = p.Mode, ", %d topics each"
	}
	if p.Subscriptions > 1 {
		how += fmt.Sprintf(topics, p.Subscriptions)
	}
	if p.Format != "" {
		how += ", " + p.Format
	}
	if p.OnSocket {
		how += ", clients publish on their own connections"
	}
	return how
}

func sessions(stateless bool) string {
	if stateless {
		return "stateless"
	}
	return "sessions"
}

func startedText(started bool) string {
	if started {
		return " (started for the test)"
	}
	return ""
}

func writeWork(r *loadtest.Result, line lineWriter) {
	if b := r.Bursts; b != nil {
		line("bursts", "%d of %d in time, %d incomplete; time to complete: %s", b.InTime, b.Total, b.Incomplete, spread(b.Completion))
	}
	if n := r.Rounds; n != nil {
		line("rounds", "%d of %d complete, %d timed out", n.Complete, n.Total, n.TimedOut)
	}
	d := r.Deliveries
	line("deliveries", "%d of %d (%d late); latency of %d, %s", d.Delivered, d.Expected, d.Late, r.Latency.Count, leftOut(r))
	if d.Surplus > 0 {
		line("surplus", "%d deliveries of messages whose publish was refused", d.Surplus)
	}
	if len(d.Gaps) > 0 {
		line("gaps", "%s", gaps(d.Gaps))
	}
	if d.EpochChanges > 0 {
		line("epochs", "%d changes without a gap frame", d.EpochChanges)
	}
	p := r.Publishes
	line("publishes", "%d, %d refused, %d waited for a connection; time to answer: %s", p.Sent, p.Refused, p.Waited, spread(p.Answer))
}

// leftOut is which deliveries have no latency.
func leftOut(r *loadtest.Result) string {
	if r.Scenario == "collab" {
		return "without the publishers' own copies"
	}
	return "without the warm-up"
}

func gaps(byReason map[string]int64) string {
	reasons := make([]string, 0, len(byReason))
	for reason, n := range byReason {
		reasons = append(reasons, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(reasons)
	return strings.Join(reasons, ", ")
}

func spread(s stats.Summary) string {
	if s.Count == 0 {
		return "none recorded"
	}
	return fmt.Sprintf("median %s, p99 %s, max %s ms", milliseconds(s.MedianMS), milliseconds(s.P99MS), milliseconds(s.MaxMS))
}

const mebibyte = 1 << 20

func writeServer(r *loadtest.Result, line lineWriter) {
	s := r.Server
	switch {
	case s == nil && r.EndedEarly():
		line("server", "not measured: the test ended early")
		return
	case s == nil:
		line("server", "not measured: name it with --admin or --server-pid")
		return
	}
	if s.CPUSource != "" {
		line("server CPU", "%.2f s, %.2f µs per delivery (from %s)", s.CPUS, s.CPUPerDeliveryUS, cpuSource(s.CPUSource))
	}
	if s.CPUNote != "" {
		line("server CPU", "not measured: %s", s.CPUNote)
	}
	if s.ResidentEndBytes > 0 {
		line("server memory", "%.1f MiB resident before, %.1f MiB with all clients (%.0f bytes per client), %.1f MiB at the end",
			float64(s.ResidentBeforeBytes)/mebibyte, float64(s.ResidentConnectedBytes)/mebibyte,
			s.ResidentPerClientBytes, float64(s.ResidentEndBytes)/mebibyte)
	}
	if s.BytesIn+s.BytesOut > 0 {
		line("server traffic", "%.2f MiB in, %.2f MiB out", float64(s.BytesIn)/mebibyte, float64(s.BytesOut)/mebibyte)
	}
	if v := s.Build["version"]; v != "" {
		line("server build", "%s", v)
	}
}

func cpuSource(source string) string {
	if source == "kernel" {
		return "the kernel"
	}
	return "its metrics"
}

func writeGenerator(r *loadtest.Result, line lineWriter) {
	g := &r.Generator
	inBursts := ""
	whose := "; thread"
	switch {
	case len(r.Agents) > 0:
		whose = fmt.Sprintf(", %d processes; the publisher's thread", len(r.Agents)+1)
	case r.Bursts != nil:
		inBursts = "; during bursts " + occupied(g.Thread.BusyInBursts, g.Thread.WaitedInBursts)
	}
	line("generator", "%.2f s of CPU time in %.1f s%s %s%s", g.CPUS, g.WindowS, whose, occupied(g.Thread.Busy, g.Thread.Waited), inBursts)
	writeAgents(r, line)
	line("schedule lag", "%s (above a p99 of %s ms the result is generator-bound)", spread(g.ScheduleLag), milliseconds(g.LagThresholdMS))
}

// writeAgents writes what each process had that had clients, if it was not one.
func writeAgents(r *loadtest.Result, line lineWriter) {
	for i := range r.Agents {
		a := &r.Agents[i]
		t := &a.Generator.Thread
		inBursts := ""
		if r.Bursts != nil {
			inBursts = "; during bursts " + occupied(t.BusyInBursts, t.WaitedInBursts)
		}
		line(fmt.Sprintf("agent %d", i+1), "%s, process %d: %d clients, mean %s ms; thread %s%s; %s",
			a.Address, a.PID, a.Clients, milliseconds(a.Latency.MeanMS), occupied(t.Busy, t.Waited), inBursts, clockText(&a.Clock))
	}
}

func clockText(c *loadtest.AgentClock) string {
	if c.Shared {
		return fmt.Sprintf("clock of this machine, ± %s ms", milliseconds(c.UncertaintyMS))
	}
	return fmt.Sprintf("clock corrected, ± %s ms (drift %s ms)", milliseconds(c.UncertaintyMS), milliseconds(c.DriftMS))
}

func occupied(busy, waited float64) string {
	return fmt.Sprintf("%.0f %% busy, %.0f %% waiting for a core", 100*busy, 100*waited)
}

func writeVerdict(r *loadtest.Result, line lineWriter) {
	switch {
	case r.Verdict.ExitCode == loadtest.ExitOK:
		line("verdict", "ok")
	case len(r.Verdict.Failed) > 0:
		line("verdict", "FAILED")
	case len(r.Verdict.Missed) > 0:
		line("verdict", "MISSED")
	default:
		line("verdict", "GENERATOR-BOUND")
	}
	for _, reason := range r.Failed() {
		line("", "%s", reason)
	}
	for _, reason := range r.Verdict.GeneratorBound {
		line("", "generator-bound: %s", reason)
	}
}
