package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pubsubd/pubsubd/loadtest/throttle"
)

// ThrottleSearchTable writes a search as plain text: its trials by their limit. The
// error is the writer's.
func ThrottleSearchTable(w io.Writer, r throttle.SearchResult) error {
	b := &strings.Builder{}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "limits.calls\tcalls/s\tserved s\tp95 s\tmean s\tp95 s\trefused\trefused after s, at most\t\t")
	for _, trial := range byCalls(r.Trials) {
		fmt.Fprintln(t, strings.Join(throttleTrialCells(&trial, r.Calls), "\t"))
	}
	_ = t.Flush() // a Builder takes everything
	fmt.Fprintf(b, "(calls/s: completed within the run; served: time from the call of the back end, which the objective limits; mean and p95: time\n"+
		"from the user's first attempt; best: the lowest limit with the best throughput, to %.0f %%)\n\n", 100*r.Precision)
	writeThrottleSearchDetails(b, &r)
	_, err := io.WriteString(w, b.String())
	return err
}

// byCalls sorts trials by their limit.
func byCalls(all []throttle.Trial) []throttle.Trial {
	return slices.SortedFunc(slices.Values(all), func(a, b throttle.Trial) int { return cmp.Compare(a.Calls, b.Calls) })
}

func throttleTrialCells(t *throttle.Trial, best int) []string {
	remark := ""
	switch {
	case t.Calls == best:
		remark = "best"
	case !t.Held:
		remark = "missed"
	}
	r := &t.Row
	return []string{
		fmt.Sprint(t.Calls), fmt.Sprintf("%.2f", t.PerSecond), seconds(r.Served.MeanMS), seconds(r.Served.P95MS),
		seconds(r.Completed.MeanMS), seconds(r.Completed.P95MS), fmt.Sprint(r.Refused.Calls), seconds(r.Told.MaxMS), remark, "",
	}
}

func writeThrottleSearchDetails(b *strings.Builder, r *throttle.SearchResult) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("scenario", "throttle, search: %s", throttleScenario(&r.Parameters))
	line("objective", "%s", throttleObjective(&r.Parameters))
	line("promise", "%s", throttlePromise(&r.Parameters))
	writeMachine(line, r.Environment)
	line("took", "%.0f s", r.TookS)
	if r.Calls > 0 {
		line("best", "limits.calls %d", r.Calls)
	}
	for i := range r.Trials {
		if trial := &r.Trials[i]; !trial.Held {
			line("missed", "%s", trial.Reason)
		}
	}
	writeThrottleVerdict(line, &r.Verdict)
	_ = t.Flush() // a Builder takes everything
}

func throttleObjective(p *throttle.Parameters) string {
	var words []string
	if p.MaxMeanMS > 0 {
		words = append(words, fmt.Sprintf("calls are served in %g s on average", p.MaxMeanMS/1000))
	}
	if p.MaxP95MS > 0 {
		words = append(words, fmt.Sprintf("95 %% of them within %g s", p.MaxP95MS/1000))
	}
	return strings.Join(words, ", ")
}

// ThrottleSearchCharts draws throughput and time in service against the limit. What
// missed the objective is hollow.
func ThrottleSearchCharts(r throttle.SearchResult) Charts {
	rate, served := Line{Name: "calls completed"}, Line{Name: "mean time in service"}
	p95 := Line{Name: "p95"}
	for _, t := range byCalls(r.Trials) {
		x := float64(t.Calls)
		rate.Points = append(rate.Points, Dot{X: x, Y: t.PerSecond, Doubtful: !t.Held})
		served.Points = append(served.Points, Dot{X: x, Y: t.Row.Served.MeanMS / 1000, Doubtful: !t.Held})
		p95.Points = append(p95.Points, Dot{X: x, Y: t.Row.Served.P95MS / 1000, Doubtful: !t.Held})
	}
	axis := Axis{Label: "limits.calls"}
	return Charts{
		{Title: "Throughput (hollow: the objective is missed)", X: axis, Y: Axis{Label: "calls/s"}, Series: []Line{rate}},
		{Title: "Time in service", X: axis, Y: Axis{Label: "s"}, Series: []Line{served, p95}},
	}
}

// ThrottleSearchHTML writes a search as a page that needs nothing else. The error is
// the writer's.
func ThrottleSearchHTML(w io.Writer, r throttle.SearchResult) error {
	var table strings.Builder
	_ = ThrottleSearchTable(&table, r) // a Builder takes everything
	return writePage(w, "pubsubd loadtest throttle --search", r.Started, table.String(), []drawing{ThrottleSearchCharts(r)})
}
