package report

import (
	"fmt"
	"html"
	"io"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/scenarios"
)

// A NamedChart is a chart and what its file is called, without an ending.
type NamedChart struct {
	Name  string
	Chart Chart
}

// SuiteCharts returns a suite's charts: latency, its deviation, memory and network
// against clients, a line for each series; and the latency over the run, of the
// runs that ask for it. What has nothing to show is left out.
func SuiteCharts(r scenarios.Result) []NamedChart {
	clients := func(name, title, unit string, ours func(*loadtest.Result) float64, theirs func(*scenarios.Theirs) *float64) NamedChart {
		return NamedChart{name, Chart{
			Title: r.Title + ": " + title, X: Axis{Label: "clients"}, Y: Axis{Label: title + ", " + unit},
			Series: againstClients(r.Runs, ours, theirs),
		}}
	}
	nothing := func(*scenarios.Theirs) *float64 { return nil }
	all := []NamedChart{
		clients("mean", "mean latency", "ms", func(r *loadtest.Result) float64 { return r.Latency.MeanMS },
			func(t *scenarios.Theirs) *float64 { return t.MeanMS }),
		clients("stdev", "standard deviation of latency", "ms", func(r *loadtest.Result) float64 { return r.Latency.StdevMS },
			func(t *scenarios.Theirs) *float64 { return t.StdevMS }),
		clients("memory", "server memory", "MiB", func(r *loadtest.Result) float64 {
			if r.Server == nil {
				return 0
			}
			return memoryMiB(r.Server)
		}, nothing),
		clients("network", "network use", "Mbit/s", networkMbit, nothing),
	}
	for i := range r.Runs {
		if run := &r.Runs[i]; run.Course && run.Result != nil {
			all = append(all, course(run))
		}
	}
	return shown(all)
}

// shown leaves out charts without a point.
func shown(all []NamedChart) []NamedChart {
	var kept []NamedChart
	for _, c := range all {
		points := 0
		for _, l := range c.Chart.Series {
			points += len(l.Points)
		}
		if points > 0 {
			kept = append(kept, c)
		}
	}
	return kept
}

// againstClients draws ours as lines and theirs as loose points; a figure of 0 of
// ours was not read. Hollow is what the generator limited.
func againstClients(runs []scenarios.RunResult, ours func(*loadtest.Result) float64, theirs func(*scenarios.Theirs) *float64) []Line {
	var lines, others []Line
	for _, name := range seriesNames(runs) {
		line, other := Line{Name: name}, Line{Name: "theirs: " + name, Loose: true}
		for _, run := range ofSeries(runs, name) {
			x := float64(run.Result.Parameters.Clients)
			if y := ours(run.Result); y > 0 {
				line.Points = append(line.Points, Dot{X: x, Y: y, Doubtful: run.Result.GeneratorBound()})
			}
			if y := theirs(&run.Theirs); y != nil {
				other.Points = append(other.Points, Dot{X: x, Y: *y})
			}
		}
		lines = append(lines, line)
		if len(other.Points) > 0 {
			others = append(others, other)
		}
	}
	return append(lines, others...)
}

// course draws each second's mean and slowest.
func course(run *scenarios.RunResult) NamedChart {
	mean, slowest := Line{Name: "mean of each second"}, Line{Name: "slowest of each second", Loose: true}
	for _, p := range run.Result.LatencySeries {
		if p.Count > 0 {
			mean.Points = append(mean.Points, Dot{X: p.AtS, Y: p.MeanMS})
			slowest.Points = append(slowest.Points, Dot{X: p.AtS, Y: p.MaxMS})
		}
	}
	return NamedChart{"course-" + run.Name, Chart{
		Title: fmt.Sprintf("%s: latency over the run, %d clients", run.Name, run.Result.Parameters.Clients),
		X:     Axis{Label: "time since the start of the recorded part, s"}, Y: Axis{Label: "latency, ms"},
		Series: []Line{mean, slowest},
	}}
}

// SuiteHTML writes a suite as a page that needs nothing else: the table as it is on
// a terminal, and the charts. The error is the writer's.
func SuiteHTML(w io.Writer, r scenarios.Result) error {
	var table strings.Builder
	_ = SuiteTable(&table, r) // a Builder takes everything
	var charts []drawing
	for _, c := range SuiteCharts(r) {
		charts = append(charts, c.Chart)
	}
	return writePage(w, r.Title, r.Started, table.String(), charts)
}

// A drawing is a Chart or Bars.
type drawing interface{ SVG(w io.Writer) error }

// writePage writes a table and charts as a page that needs nothing else.
func writePage(w io.Writer, title string, made time.Time, table string, charts []drawing) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n"+
		"<title>%s</title>\n<style>\n:root{color-scheme:light dark}body{font:14px system-ui,sans-serif;margin:2em auto;max-width:110em;padding:0 1em}\n"+
		"pre{overflow-x:auto;font-size:13px}svg{max-width:100%%;height:auto;margin:0 1em 1em 0}\n</style>\n<h1>%s</h1>\n<p>Made %s.</p>\n<pre>",
		html.EscapeString(title), html.EscapeString(title), made.UTC().Format("2006-01-02 15:04 UTC"))
	b.WriteString(html.EscapeString(table) + "</pre>\n")
	for _, c := range charts {
		_ = c.SVG(b)
	}
	b.WriteString("</html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
