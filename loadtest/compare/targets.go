package main

import (
	"fmt"
	"math"
)

// Who is judged, and by whom.
const (
	judged   = "pubsubd"
	theFloor = "floor"
	theNchan = "nchan" // in long poll

	// withLimits ends the name of a contender that but for its limits is another.
	withLimits = "-limits"
)

// A target is a figure of pubsubd that is to be reached.
type target struct {
	what   string
	atMost float64
	format string
	figure func(c Comparison, server string) spread // the least is NaN where only one figure is meant
}

var targets = []target{
	{"Long poll, 5000 clients: CPU per delivery ÷ floor", 1.35, "%.2f", cpuRatio("long-poll-5000", theFloor)},
	{"Long poll, 5000 clients: CPU per delivery ÷ nchan", 0.75, "%.2f", cpuRatio("long-poll-5000", theNchan)},
	{"Stream, 5000 clients: CPU per delivery ÷ floor", 1.2, "%.2f", cpuRatio("stream-5000", theFloor)},
	{"Collaboration: CPU per message ÷ nchan", 0.85, "%.2f", messageRatio},
	{"Collaboration: median latency ÷ nchan", 0.9, "%.2f", latencyRatio},
	{"Resident bytes of a long poll that waits", 6500, "%.0f", residentBytes},
	{"Long poll, 5000 clients: burst p95 ÷ nchan", 1, "%.2f", burstRatio},
	{"Long poll, 5000 clients: CPU per delivery, with limits ÷ without", 1.05, "%.2f", limitsRatio("long-poll-5000", figures.cpuOf)},
	{"Stream, 5000 clients: CPU per delivery, with limits ÷ without", 1.05, "%.2f", limitsRatio("stream-5000", figures.cpuOf)},
	{"Collaboration: CPU per message, with limits ÷ without", 1.05, "%.2f", limitsRatio("collab", figures.cpuMessageOf)},
}

func cpuRatio(scenario, by string) func(Comparison, string) spread {
	return func(c Comparison, server string) spread {
		return c.figuresOf(scenario, server).cpu.ratio(c.figuresOf(scenario, by).cpu)
	}
}

func messageRatio(c Comparison, server string) spread {
	return c.figuresOf("collab", server).cpuMessage.ratio(c.figuresOf("collab", theNchan).cpuMessage)
}

func latencyRatio(c Comparison, server string) spread {
	return spread{c.figuresOf("collab", server).median / c.figuresOf("collab", theNchan).median, math.NaN()}
}

func limitsRatio(scenario string, of func(figures) spread) func(Comparison, string) spread {
	return func(c Comparison, server string) spread {
		return of(c.figuresOf(scenario, server+withLimits)).ratio(of(c.figuresOf(scenario, server)))
	}
}

func (f figures) cpuOf() spread        { return f.cpu }
func (f figures) cpuMessageOf() spread { return f.cpuMessage }

func residentBytes(c Comparison, server string) spread {
	return spread{c.figuresOf("memory-long-poll", server).resident, math.NaN()}
}

func burstRatio(c Comparison, server string) spread {
	const scenario = "long-poll-5000"
	return spread{percentile(c.figuresOf(scenario, server).bursts, 95) / percentile(c.figuresOf(scenario, theNchan).bursts, 95), math.NaN()}
}

// verdict says it of the figure by medians, the one that counts.
func (t target) verdict(s spread) string {
	switch {
	case math.IsNaN(s.median):
		return "not measured"
	case s.median <= t.atMost:
		return "reached"
	default:
		return "**missed**"
	}
}

// row judges pubsubd, and shows what its other lane would have reached.
func (t target) row(c Comparison) []string {
	s := t.figure(c, judged)
	return []string{
		t.what, fmt.Sprintf("≤ "+t.format, t.atMost),
		number(t.format, s.median), number(t.format, s.least), t.verdict(s),
		number(t.format, t.figure(c, judged+"-channel").median),
	}
}
