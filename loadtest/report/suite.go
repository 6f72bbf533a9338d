package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/scenarios"
)

// SuiteTable writes a suite as plain text: its runs in one table, each with the
// other system's figures beside ours; its searches in another; then what is to be
// said of single runs. The error is the writer's.
func SuiteTable(w io.Writer, r scenarios.Result) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s\n", r.Title)
	writeParagraph(b, "", r.Source)
	writeParagraph(b, "", r.About)
	writeParagraph(b, "", changed(r.Runs))
	writeSuiteRuns(b, r.Runs)
	writeSuiteSearches(b, r.Runs)
	writeSuiteNotes(b, &r)
	_, err := io.WriteString(w, b.String())
	return err
}

// paragraphWidth is what a paragraph of words is broken at.
const paragraphWidth = 120

// writeParagraph breaks a text into lines, the first after a label.
func writeParagraph(b *strings.Builder, label, text string) {
	if text == "" {
		return
	}
	line := label
	for _, word := range strings.Fields(text) {
		if line != "" && line != label && len(line)+1+len(word) > paragraphWidth {
			b.WriteString(line + "\n")
			line = strings.Repeat(" ", len(label))
		}
		if line != "" && !strings.HasSuffix(line, " ") {
			line += " "
		}
		line += word
	}
	b.WriteString(line + "\n")
}

// changed says which runs are not as the file has them.
func changed(runs []scenarios.RunResult) string {
	var kinds []string
	byChange := map[string][]string{}
	for i := range runs {
		for _, c := range runs[i].Changes {
			text := c.String()
			if byChange[text] == nil {
				kinds = append(kinds, text)
			}
			byChange[text] = append(byChange[text], runs[i].Name)
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	for i, text := range kinds {
		if n := len(byChange[text]); n < len(runs) {
			kinds[i] = fmt.Sprintf("%s (%d of %d runs)", text, n, len(runs))
		}
	}
	return "CHANGED from the scenario: " + strings.Join(kinds, "; ") + "."
}

var suiteHeads = []string{
	"run", "T", "N", "clients", "D or P s", "mean ms", "theirs", "median ms", "theirs", "stdev ms", "theirs", "p99 ms",
	"loss", "dup", "disorder", "CPU µs/delivery", "MiB", "Mbit/s", "exit", "",
}

func writeSuiteRuns(b *strings.Builder, runs []scenarios.RunResult) {
	var rows [][]string
	for i := range runs {
		if runs[i].Kind != scenarios.BroadcastSearch {
			rows = append(rows, suiteRow(&runs[i]))
		}
	}
	if len(rows) == 0 {
		return
	}
	b.WriteByte('\n')
	writeFilled(b, append([][]string{suiteHeads}, rows...))
	b.WriteString("(T: topics, N: clients per topic, D: delay between rounds, P: period, MiB: resident memory at the end, Mbit/s: in and out,\n" +
		"exit: 0 ok, 1 failed, 3 objective missed, 4 the generator was the limit)\n")
}

// writeFilled writes rows of which the first are heads, without the columns that
// have nothing below their head.
func writeFilled(b *strings.Builder, rows [][]string) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		var kept []string
		for i, cell := range row {
			if i == len(row)-1 || slices.ContainsFunc(rows[1:], func(r []string) bool { return r[i] != "" }) {
				kept = append(kept, cell)
			}
		}
		fmt.Fprintln(t, strings.Join(kept, "\t"))
	}
	_ = t.Flush() // a Builder takes everything
}

func suiteRow(run *scenarios.RunResult) []string {
	theirs := []string{figure(run.Theirs.MeanMS), figure(run.Theirs.MedianMS), figure(run.Theirs.StdevMS)}
	r := run.Result
	if r == nil {
		return []string{
			run.Name, "", "", "", "", "", theirs[0], "", theirs[1], "", theirs[2], "", "", "", "", "", "", "", fmt.Sprint(run.ExitCode), "",
		}
	}
	p, l, d := &r.Parameters, &r.Latency, &r.Deliveries
	cpu, memory, network := "", "", ""
	if s := r.Server; s != nil {
		cpu = filled(s.CPUSource != "", "%.1f", s.CPUPerDeliveryUS)
		memory = filled(s.ResidentEndBytes > 0, "%.1f", memoryMiB(s))
		network = filled(s.BytesIn+s.BytesOut > 0, "%.2f", networkMbit(r))
	}
	return []string{
		run.Name, fmt.Sprint(p.Topics), fmt.Sprint(p.PerTopic), fmt.Sprint(p.Clients), fmt.Sprintf("%g", (p.PeriodMS+p.DelayMS)/1000),
		milliseconds(l.MeanMS), theirs[0], milliseconds(l.MedianMS), theirs[1], milliseconds(l.StdevMS), theirs[2], milliseconds(l.P99MS),
		fmt.Sprint(d.Lost), fmt.Sprint(d.Duplicates), fmt.Sprint(d.Disordered), cpu, memory, network, fmt.Sprint(run.ExitCode), "",
	}
}

// figure is one of theirs; empty if it is not known.
func figure(v *float64) string {
	if v == nil {
		return ""
	}
	return Number(*v)
}

func filled(known bool, format string, v float64) string {
	if !known {
		return ""
	}
	return fmt.Sprintf(format, v)
}

func memoryMiB(s *loadtest.Server) float64 { return float64(s.ResidentEndBytes) / mebibyte }

// networkMbit is what the server received and sent in the window, a second.
func networkMbit(r *loadtest.Result) float64 {
	if r.Server == nil || r.Generator.WindowS == 0 {
		return 0
	}
	return float64(r.Server.BytesIn+r.Server.BytesOut) * 8 / 1e6 / r.Generator.WindowS
}

func writeSuiteSearches(b *strings.Builder, runs []scenarios.RunResult) {
	rows := [][]string{{"run", "P s", "clients", "theirs", "p99 ms", "slowest burst ms", "loss", "dup", "disorder", "CPU µs/delivery", "limited by", "exit", ""}}
	for i := range runs {
		if runs[i].Kind == scenarios.BroadcastSearch {
			rows = append(rows, suiteSearchRows(&runs[i])...)
		}
	}
	if len(rows) == 1 {
		return
	}
	b.WriteByte('\n')
	writeFilled(b, rows)
	b.WriteString("(P: period between bursts, clients: the most clients that got every burst before the next one was due)\n")
}

func suiteSearchRows(run *scenarios.RunResult) [][]string {
	theirs, exit := figure(run.Theirs.Clients), fmt.Sprint(run.ExitCode)
	if run.Search == nil {
		return [][]string{{run.Name, "", "", theirs, "", "", "", "", "", "", "", exit, ""}}
	}
	var rows [][]string
	for i := range run.Search.Points {
		p := &run.Search.Points[i]
		plain := searchRow(p) // P, clients, the article, p99, slowest, CPU, limited by
		loss := []string{"", "", ""}
		if p.Result != nil {
			d := &p.Result.Deliveries
			loss = []string{fmt.Sprint(d.Lost), fmt.Sprint(d.Duplicates), fmt.Sprint(d.Disordered)}
		}
		rows = append(rows, []string{run.Name, plain[0], plain[1], theirs, plain[3], plain[4], loss[0], loss[1], loss[2], plain[5], plain[6], exit, ""})
	}
	return rows
}

// writeSuiteNotes writes words: the other system's, and of our runs why they are
// not all well.
func writeSuiteNotes(b *strings.Builder, r *scenarios.Result) {
	b.WriteByte('\n')
	writeParagraph(b, "theirs   ", r.Theirs)
	for i := range r.Runs {
		if words := r.Runs[i].Theirs.Words; words != "" {
			writeParagraph(b, "theirs   ", r.Runs[i].Name+": "+words)
		}
	}
	for i := range r.Runs {
		for _, note := range notes(&r.Runs[i]) {
			writeParagraph(b, "ours     ", r.Runs[i].Name+": "+note)
		}
	}
	for _, note := range growth(r.Runs) {
		writeParagraph(b, "ours     ", note)
	}
	e := r.Environment
	writeParagraph(b, "machine  ", fmt.Sprintf("%d cores, shared by generator and server unless there was a --target; GOMAXPROCS %d, %s %s/%s%s",
		e.Cores, e.GOMAXPROCS, e.GoVersion, e.OS, e.Arch, build(r.Runs)))
	verdict := "ok"
	if n := faulty(r.Runs); n > 0 {
		verdict = fmt.Sprintf("%d of %d runs did not pass", n, len(r.Runs))
	}
	writeParagraph(b, "verdict  ", fmt.Sprintf("%s (exit code %d)", verdict, r.ExitCode))
}

func faulty(runs []scenarios.RunResult) (n int) {
	for i := range runs {
		if runs[i].ExitCode != loadtest.ExitOK {
			n++
		}
	}
	return n
}

// build is which server was measured, if it said so.
func build(runs []scenarios.RunResult) string {
	for i := range runs {
		if r := runs[i].Result; r != nil && r.Server != nil && r.Server.Build["version"] != "" {
			return "; server build " + r.Server.Build["version"]
		}
	}
	return ""
}

func notes(run *scenarios.RunResult) []string {
	var all []string
	if run.Error != "" {
		all = append(all, run.Error)
	}
	if r := run.Result; r != nil {
		all = append(all, r.Failed()...)
		for _, reason := range r.Verdict.GeneratorBound {
			all = append(all, "generator-bound: "+reason)
		}
	}
	if s := run.Search; s != nil {
		for i := range s.Points {
			p := &s.Points[i]
			note := fmt.Sprintf("at P %g s, limited by %s: %s", p.PeriodMS/1000, p.LimitedBy, p.Reason)
			if len(p.Trials) > 0 {
				note += "; tried " + trials(p.Trials)
			}
			all = append(all, note)
		}
	}
	return all
}

// growth says how figures grow from the fewest to the most clients of a series.
func growth(runs []scenarios.RunResult) []string {
	var all []string
	for _, name := range seriesNames(runs) {
		of := ofSeries(runs, name)
		first, last := of[0].Result, of[len(of)-1].Result
		if first.Parameters.Clients == last.Parameters.Clients {
			continue
		}
		note := fmt.Sprintf("%s: from %d to %d clients, a factor of %s, the mean latency grows by a factor of %s, its standard deviation by %s", name,
			first.Parameters.Clients, last.Parameters.Clients, times(float64(last.Parameters.Clients), float64(first.Parameters.Clients)),
			times(last.Latency.MeanMS, first.Latency.MeanMS), times(last.Latency.StdevMS, first.Latency.StdevMS))
		if first.Server != nil && last.Server != nil {
			note += fmt.Sprintf(", the memory by %s, the network use by %s", times(memoryMiB(last.Server), memoryMiB(first.Server)), times(networkMbit(last), networkMbit(first)))
		}
		all = append(all, note)
	}
	return all
}

func times(last, first float64) string {
	if first == 0 {
		return "?"
	}
	return Number(last / first)
}

// seriesNames returns those that have results, in order.
func seriesNames(runs []scenarios.RunResult) []string {
	var names []string
	for i := range runs {
		if s := runs[i].Series; s != "" && runs[i].Result != nil && !slices.Contains(names, s) {
			names = append(names, s)
		}
	}
	return names
}

// ofSeries returns a series' runs that have a result, by clients.
func ofSeries(runs []scenarios.RunResult, name string) []*scenarios.RunResult {
	var of []*scenarios.RunResult
	for i := range runs {
		if runs[i].Series == name && runs[i].Result != nil {
			of = append(of, &runs[i])
		}
	}
	slices.SortStableFunc(of, func(a, b *scenarios.RunResult) int {
		return cmp.Compare(a.Result.Parameters.Clients, b.Result.Parameters.Clients)
	})
	return of
}
