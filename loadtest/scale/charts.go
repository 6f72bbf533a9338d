package main

import (
	"slices"

	"github.com/pubsubd/pubsubd/loadtest/report"
)

// A chartFile is a chart and the name of its file.
type chartFile struct {
	file  string
	chart report.Chart
}

// charts returns a series' charts: CPU, memory and latency.
func charts(s series, points []Measured) []chartFile {
	of := func(what, title, unit string, log bool, lines ...report.Line) chartFile {
		lines = slices.DeleteFunc(lines, func(l report.Line) bool { return len(l.Points) == 0 })
		return chartFile{"scale-" + s.name + "-" + what + ".svg", report.Chart{
			Title: title + ", by " + s.axis, X: report.Axis{Label: s.axis, Log: true}, Y: report.Axis{Label: unit, Log: log}, Series: lines,
		}}
	}
	return []chartFile{
		of("cpu", "CPU of a delivery", "µs per delivery", false,
			lineOf("server's CPU", points, func(m *Measured) float64 { return m.CPUPerDeliveryUS })),
		of("memory", "Resident memory of a session", "bytes per session", s.name == "subscriptions",
			lineOf("all connected", points, (*Measured).residentPerSession),
			lineOf("after the last message", points, (*Measured).residentEndPerSession)),
		of("latency", "Latency", "ms", true,
			lineOf("99th percentile", points, func(m *Measured) float64 { return m.P99MS }),
			lineOf("median", points, func(m *Measured) float64 { return m.MedianMS })),
	}
}

func lineOf(name string, points []Measured, figure func(*Measured) float64) report.Line {
	l := report.Line{Name: name}
	for i := range points {
		m := &points[i]
		if m.Deliveries == 0 {
			continue
		}
		note := ""
		if m.Status != OK {
			note = ", " + string(m.Status)
		}
		l.Points = append(l.Points, report.Dot{X: m.X, Y: figure(m), Doubtful: m.Status != OK, Note: note})
	}
	return l
}
