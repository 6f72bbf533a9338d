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
