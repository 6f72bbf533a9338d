package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// render returns the tables as Markdown. It looks at nothing but the comparison.
func (c Comparison) render() string {
	var b strings.Builder
	b.WriteString("# pubsubd compared\n\n")
	if c.Quick {
		b.WriteString("**A quick run. It only shows that everything works; its figures mean nothing.**\n\n")
	}
	c.renderPreface(&b)
	b.WriteString("\n## Targets\n\n")
	writeTable(&b, []string{"target", "at most", "medians", "minima", "result", "pubsubd-channel"}, c.targetRows())
	for _, h := range c.Scenarios {
		c.renderScenario(&b, h)
	}
	return b.String()
}

func (c Comparison) renderPreface(b *strings.Builder) {
	m := c.Machine
	fmt.Fprintf(b, "Made by `make compare` on %s from source %s. `make compare ARGS=-render` writes these tables again from `%s`, which has the raw figures of every run.\n\n",
		c.Finished.Format("2006-01-02"), c.Source, jsonName)
	fmt.Fprintf(b, "Machine: %d cores (%s), %.1f GiB, %s, kernel %s, at most %d open files per process. The load generator and the server share the machine.\n\n",
		m.Cores, m.CPU, float64(m.MemoryBytes)/(1<<30), m.System, m.Kernel, m.OpenFiles)
	for _, product := range slices.Sorted(maps.Keys(c.Versions)) {
		fmt.Fprintf(b, "- %s: %s\n", product, c.Versions[product])
	}
	for _, l := range c.LeftOut {
		fmt.Fprintf(b, "- %s: **left out**, %s\n", l.Server, l.Reason)
	}
	b.WriteString(reading)
}

// reading tells how to read the tables.
const reading = `
Each measurement starts a new server, with its default settings, and a new load
generator. Rounds are interleaved, and each begins with another server. The floor
is the lowest possible cost: one thread that answers with fixed bytes. CPU time
that the host gives to other machines counts in the CPU figures. So read the
ratios: those of the medians of all rounds, and those of the minima. Differences
below about 10 % are noise. Bursts are those of all rounds together. Latencies are
medians of the rounds. Failed runs do not count. If the load generator was bound,
bursts and latencies show its limits; the CPU time of the server is still valid.

Messages are published by HTTP requests on separate connections, to every server.
Only in pubsubd-ws-duplex, each client publishes on its own WebSocket, with a
command and its reply.
`

func (c Comparison) targetRows() [][]string {
	var rows [][]string
	for _, t := range targets {
		rows = append(rows, t.row(c))
	}
	return rows
}

// A column shows one figure. The references are NaN where they were not measured.
type column struct {
	title string
	cell  func(f, floor, nchan figures) string
}

func plain(title, format string, value func(f figures) float64) column {
	return column{title, func(f, _, _ figures) string { return number(format, value(f)) }}
}

// cost are the columns of a spread: itself, and over the references.
func cost(unit string, of func(f figures) spread) []column {
	return []column{
		plain(unit, "%.2f", func(f figures) float64 { return of(f).median }),
		plain("min", "%.2f", func(f figures) float64 { return of(f).least }),
		{"÷ floor", func(f, floor, _ figures) string { return number("%.2f", of(f).ratio(of(floor)).median) }},
		{"min", func(f, floor, _ figures) string { return number("%.2f", of(f).ratio(of(floor)).least) }},
		{"÷ nchan", func(f, _, nchan figures) string { return number("%.2f", of(f).ratio(of(nchan)).median) }},
	}
}

var (
	runsColumn    = column{"runs", func(f, _, _ figures) string { return fmt.Sprint(f.runs - f.failed) }}
	perDelivery   = cost("CPU µs/delivery", func(f figures) spread { return f.cpu })
	perMessage    = cost("CPU µs/message", func(f figures) spread { return f.cpuMessage })
	burstColumns  = []column{plain("burst median ms", "%.1f", burstPercentile(50)), plain("p95", "%.1f", burstPercentile(95))}
	latencyColumn = []column{
		plain("latency median ms", "%.2f", func(f figures) float64 { return f.median }),
		plain("p99", "%.2f", func(f figures) float64 { return f.p99 }),
	}
	residentColumn = plain("resident B/client", "%.0f", func(f figures) float64 { return f.resident })
	lostColumn     = column{"lost", func(f, _, _ figures) string { return lostOf(f) }}
	busyColumn     = plain("generator busy %", "%.0f", func(f figures) float64 { return 100 * f.busy })
	remarksColumn  = column{"remarks", func(f, _, _ figures) string { return f.remarks() }}
)

func burstPercentile(percent int) func(f figures) float64 {
	return func(f figures) float64 { return percentile(f.bursts, percent) }
}

func lostOf(f figures) string {
	switch {
	case f.runs == f.failed:
		return nothing
	case f.lost == 0:
		return "0"
	}
	return fmt.Sprintf("%d of %d", f.lost, f.expected)
}

// columnsOf a scenario show what it is for.
func columnsOf(scenario string) []column {
	memory, collab := strings.HasPrefix(scenario, "memory-"), scenario == "collab"
	var middle []column
	switch {
	case memory:
		middle = []column{residentColumn, lostColumn}
	case collab:
		middle = slices.Concat(perMessage, perDelivery[:2], latencyColumn, []column{lostColumn, residentColumn, busyColumn})
	default:
		middle = slices.Concat(perDelivery, burstColumns, latencyColumn, []column{lostColumn, residentColumn, busyColumn})
	}
	return slices.Concat([]column{runsColumn}, middle, []column{remarksColumn})
}

func (c Comparison) renderScenario(b *strings.Builder, h Heading) {
	columns := columnsOf(h.Name)
	floor := c.figuresOf(h.Name, theFloor)
	nchan := c.figuresOf(h.Name, c.nchanOf(h))
	heads := []string{"server"}
	for _, column := range columns {
		heads = append(heads, column.title)
	}
	var rows [][]string
	for _, server := range h.Servers {
		f := c.figuresOf(h.Name, server)
		if f.runs == 0 {
			continue
		}
		row := []string{server}
		for _, column := range columns {
			row = append(row, column.cell(f, floor, nchan))
		}
		rows = append(rows, row)
	}
	if rows == nil {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n`pubsubd loadtest %s`\n\n", h.Title, h.Args)
	writeTable(b, heads, rows)
}

// nchanOf returns in which way Nchan is the reference: by long poll, unless the
// scenario is for streams.
func (c Comparison) nchanOf(h Heading) string {
	if slices.Contains(h.Servers, theNchan) {
		return theNchan
	}
	return "nchan-sse"
}

// remarks are what keeps the figures from being taken as they are.
func (f figures) remarks() string {
	var all []string
	if f.failed > 0 {
		all = append(all, fmt.Sprintf("**%d of %d runs failed**: %s", f.failed, f.runs, f.firstError))
	}
	if f.bound > 0 {
		all = append(all, fmt.Sprintf("generator bound in %d of %d", f.bound, f.runs-f.failed))
	}
	for _, count := range []struct {
		of   string
		many int64
	}{{"late bursts", int64(f.late)}, {"duplicates", f.duplicates}, {"out of order", f.disordered}} {
		if count.many > 0 {
			all = append(all, fmt.Sprintf("%s: %d", count.of, count.many))
		}
	}
	if f.steal >= notableSteal {
		all = append(all, fmt.Sprintf("host took up to %.0f %%", 100*f.steal))
	}
	return strings.Join(all, "; ")
}

// notableSteal is the share of the machine's time from which its being taken away
// may explain a figure.
const notableSteal = 0.05

// nothing stands where there is no figure.
const nothing = "–"

func number(format string, value float64) string {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return nothing
	}
	return fmt.Sprintf(format, value)
}

// writeTable writes a Markdown table: the first column to the left, others to the
// right.
func writeTable(b *strings.Builder, heads []string, rows [][]string) {
	writeRow(b, heads)
	b.WriteString("|---" + strings.Repeat("|---:", len(heads)-1) + "|\n")
	for _, row := range rows {
		writeRow(b, row)
	}
}

func writeRow(b *strings.Builder, cells []string) {
	for _, cell := range cells {
		fmt.Fprintf(b, "| %s ", strings.NewReplacer("|", `\|`, "\n", " ").Replace(cell))
	}
	b.WriteString("|\n")
}
