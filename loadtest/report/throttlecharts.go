package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/pubsubd/pubsubd/loadtest/stats"
	"github.com/pubsubd/pubsubd/loadtest/throttle"
)

// Charts are several in one file, one below the other.
type Charts []Chart

// SVG writes the charts. The error is the writer's.
func (c Charts) SVG(w io.Writer) error {
	b := &strings.Builder{}
	height := 0.0
	for i := range c {
		fmt.Fprintf(b, "<g transform=\"translate(0 %s)\">\n", short(height))
		_ = c[i].SVG(b) // a Builder takes everything
		b.WriteString("</g>\n")
		height += c[i].height()
	}
	_, err := fmt.Fprintf(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %s %s\" width=\"%s\" height=\"%s\">\n%s</svg>\n",
		short(chartWidth), short(height), short(chartWidth), short(height), b)
	return err
}

// ThrottleCharts draws how a run went: calls completed so far, by when they were
// answered and by when they were wanted, and their mean time; the article's at the
// end of its own.
func ThrottleCharts(r throttle.Result) Charts {
	ends := Chart{Title: "Calls completed", X: Axis{Label: "time since the start of the run, s"}, Y: Axis{Label: "answered so far"}}
	begins := Chart{Title: "Calls begun and completed", X: ends.X, Y: Axis{Label: "begun so far"}}
	means := Chart{Title: "Mean time of calls", X: ends.X, Y: Axis{Label: "s, by the time of the answer"}}
	for i := range r.Rows {
		row, interval := &r.Rows[i], r.Parameters.IntervalMS/1000
		name := row.Setting.String()
		ends.Series = append(ends.Series, Line{Name: name, Points: soFar(row.Ends, interval)})
		begins.Series = append(begins.Series, Line{Name: name, Points: soFar(row.Begins, interval)})
		means.Series = append(means.Series, Line{Name: name, Points: meansOf(row.Ends, interval)})
	}
	for i := range r.Rows {
		if row := &r.Rows[i]; row.Theirs != nil {
			at, name := r.Parameters.DurationMS/1000, "the article, "+row.Setting.String()
			ends.Series = append(ends.Series, Line{Name: name, Loose: true, Points: []Dot{{X: at, Y: float64(row.Theirs.Completed)}}})
			means.Series = append(means.Series, Line{Name: name, Loose: true, Points: []Dot{{X: at, Y: row.Theirs.MeanS, Note: ", over the run"}}})
		}
	}
	return Charts{ends, begins, means}
}

// soFar adds the counts of a course up, each at its interval's end.
func soFar(course []stats.Point, interval float64) []Dot {
	dots, sum := []Dot{{}}, int64(0)
	for _, p := range course {
		sum += p.Count
		dots = append(dots, Dot{X: p.AtS + interval, Y: float64(sum)})
	}
	return dots
}

// meansOf leaves out intervals in which nothing was.
func meansOf(course []stats.Point, interval float64) []Dot {
	var dots []Dot
	for _, p := range course {
		if p.Count > 0 {
			dots = append(dots, Dot{X: p.AtS + interval/2, Y: p.MeanMS / 1000, Note: fmt.Sprintf(" (%d calls)", p.Count)})
		}
	}
	return dots
}
