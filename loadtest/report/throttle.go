package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/throttle"
)

// ThrottleTable writes the experiment as plain text: a row for each setting beside the
// article's, then what was behind it. The error is the writer's.
func ThrottleTable(w io.Writer, r throttle.Result) error {
	b := &strings.Builder{}
	writeThrottle(b, &r)
	writeThrottleWaits(b, r.Rows)
	writeThrottleDetails(b, &r)
	_, err := io.WriteString(w, b.String())
	return err
}

var throttleHeads = []string{
	"sessions/calls", "within", "theirs", "at most", "completed", "mean s", "theirs", "p95 s", "served s", "unfinished", "mean s with them",
	"loss", "dup", "disorder", "gaps", "server CPU s", "generator CPU s", "",
}

func writeThrottle(b *strings.Builder, r *throttle.Result) {
	rows := [][]string{throttleHeads}
	for i := range r.Rows {
		rows = append(rows, throttleCells(&r.Rows[i]))
	}
	ideal := make([]string, len(throttleHeads))
	ideal[0], ideal[1], ideal[4], ideal[5] = "ideal", fmt.Sprint(r.Ideal.Within), fmt.Sprint(r.Ideal.Completed), seconds(r.Ideal.MeanMS)
	writeFilled(b, append(rows, ideal))
	b.WriteString("(within: calls completed within the run; at most: calls that the limits allow; completed: with the calls in flight at its end;\n" +
		"mean and p95: time of completed calls, from the user's first attempt; served: from the call of the back end; unfinished: calls\n" +
		"that were not completed; mean with them: counts their time until the end of the run")
	if slices.ContainsFunc(r.Rows, func(r throttle.Row) bool { return r.Theirs != nil }) {
		b.WriteString("; theirs: \"WCF\nInstancing, Concurrency, and Throttling\", part 3")
	}
	b.WriteString(")\n\n")
}

func throttleCells(r *throttle.Row) []string {
	completed, mean, cpu := "", "", ""
	if r.Theirs != nil {
		completed, mean = fmt.Sprint(r.Theirs.Completed), fmt.Sprint(r.Theirs.MeanS)
	}
	if r.ServerCPU {
		cpu = fmt.Sprintf("%.2f", r.ServerS)
	}
	d := &r.Delivered
	return []string{
		r.Setting.String(), fmt.Sprint(r.Within.Count), completed, fmt.Sprint(r.Most), fmt.Sprint(r.Completed.Count),
		seconds(r.Completed.MeanMS), mean, seconds(r.Completed.P95MS), seconds(r.Served.MeanMS), fmt.Sprint(r.Unfinished.Count), seconds(r.WithUnfinished),
		fmt.Sprint(d.Lost), fmt.Sprint(d.Duplicates), fmt.Sprint(d.Disordered), fmt.Sprint(d.Gaps), cpu, fmt.Sprintf("%.2f", r.GeneratorS), "",
	}
}

// seconds writes milliseconds as seconds, to the hundredth where a call takes that
// long.
func seconds(ms float64) string {
	if ms < 1000 {
		return fmt.Sprintf("%.3f", ms/1000)
	}
	return fmt.Sprintf("%.2f", ms/1000)
}

func writeThrottleWaits(b *strings.Builder, rows []throttle.Row) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "sessions/calls\tusers with a session\trefused openings\trefused calls\trefused after s\tat most\tlongest wait s\tlate\tno answer\tback end at a time\tits lag ms\tat most\t")
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(t, "%v\t%d\t%d\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t\n", r.Setting, r.Users, r.Refused.Sessions, r.Refused.Calls,
			seconds(r.Told.MeanMS), seconds(r.Told.MaxMS), seconds(r.Silent.MaxMS), r.Late, r.Untold,
			r.Hook.Most, milliseconds(r.Hook.Late.MeanMS), milliseconds(r.Hook.Late.MaxMS))
	}
	_ = t.Flush() // a Builder takes everything
	b.WriteString("(refused after: time until a refusal, which names the time to retry; longest wait: until a request was admitted or refused; late:\n" +
		"requests that waited longer than promised; no answer: users without answer or refusal; its lag: how late the back end answered)\n\n")
}

func writeThrottleDetails(b *strings.Builder, r *throttle.Result) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("scenario", "throttle: %s", throttleScenario(&r.Parameters))
	line("promise", "%s", throttlePromise(&r.Parameters))
	line("target", "%s", throttleTarget(&r.Parameters))
	writeMachine(line, r.Environment)
	line("took", "%.0f s", r.TookS)
	writeThrottleVerdict(line, &r.Verdict)
	_ = t.Flush() // a Builder takes everything
}

func writeMachine(line lineWriter, e loadtest.Environment) {
	line("machine", "%d cores, GOMAXPROCS %d, %s %s/%s", e.Cores, e.GOMAXPROCS, e.GoVersion, e.OS, e.Arch)
}

func throttleScenario(p *throttle.Parameters) string {
	words := []string{fmt.Sprintf("%d users for %g s, calls of %g s", p.Users, p.DurationMS/1000, p.CallTimeMS/1000)}
	if p.Step != "" {
		words = append(words, "started in steps of "+p.Step)
	}
	if p.ThinkMS > 0 {
		words = append(words, fmt.Sprintf("pauses of %g s on average", p.ThinkMS/1000))
	}
	if p.CallsPerSession > 0 {
		words = append(words, fmt.Sprintf("%d calls per session", p.CallsPerSession))
	}
	if p.BackendWorkers > 0 {
		words = append(words, fmt.Sprintf("a back end that serves %d at a time", p.BackendWorkers))
	}
	return strings.Join(words, ", ")
}

func throttlePromise(p *throttle.Parameters) string {
	return fmt.Sprintf("each request is admitted or refused within %g s (tolerance %g s); %d openings of sessions and %d calls may queue",
		p.WaitMS/1000, p.ToleranceMS/1000, p.PendingSessions, p.WaitingCalls)
}

func throttleTarget(p *throttle.Parameters) string {
	if p.Target != "" {
		return p.Target
	}
	return "a new server for each run, started by the test"
}

func writeThrottleVerdict(line lineWriter, v *throttle.Verdict) {
	line("verdict", "%s", map[int]string{
		loadtest.ExitOK: "ok", loadtest.ExitFailed: "FAILED", loadtest.ExitMissed: "MISSED", loadtest.ExitGeneratorBound: "GENERATOR-BOUND",
	}[v.ExitCode])
	for _, reason := range slices.Concat(v.Failed, v.Missed, v.GeneratorBound) {
		line("", "%s", reason)
	}
}

// ThrottleHTML writes the experiment as a page that needs nothing else. The error is
// the writer's.
func ThrottleHTML(w io.Writer, r throttle.Result) error {
	var table strings.Builder
	_ = ThrottleTable(&table, r) // a Builder takes everything
	return writePage(w, "pubsubd loadtest throttle", r.Started, table.String(), []drawing{ThrottleCharts(r)})
}
