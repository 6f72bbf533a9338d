package main

import (
	"fmt"
	"strings"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// A Verdict says whether a demand was met.
type Verdict struct {
	Demand string `json:"demand"`
	Met    bool   `json:"met"`
	Found  string `json:"found"`
}

// mostRatio is by how much an attack may raise what victims wait for at the 99th
// percentile, beyond what the attackers' own work on the same machine does to it.
const mostRatio = 2

// judge gives the verdicts.
func judge(r *Result) []Verdict {
	verdicts := []Verdict{r.nothingLost(), r.withinBudget(), r.fastEnough(), r.carriedOut()}
	for _, a := range r.Attacks {
		if a.Name == racing {
			verdicts = append(verdicts, a.noneReplaced())
		}
	}
	return verdicts
}

// passed reports whether every demand was met.
func (r *Result) passed() bool {
	for _, v := range r.Verdicts {
		if !v.Met {
			return false
		}
	}
	return len(r.Verdicts) > 0
}

// ratio is the 99th percentile of live by that with the sink.
func (a *Attacked) ratio() float64 { return ratio(a.Live.Victims.Latency, a.Sink.Victims.Latency) }

// ratio is 0 where nothing was measured.
func ratio(live, sink *stats.Latency) float64 {
	if sink.Count() == 0 || live.Count() == 0 {
		return 0
	}
	return float64(live.Quantile(0.99)) / float64(max(sink.Quantile(0.99), 1))
}

func (r *Result) overallLatency() (live, sink *stats.Latency) {
	live, sink = stats.NewLatency(), stats.NewLatency()
	for _, a := range r.Attacks {
		live.Merge(a.Live.Victims.Latency)
		sink.Merge(a.Sink.Victims.Latency)
	}
	return live, sink
}

// faults is what victims must never see, in words; empty: they saw nothing.
func (v *Victims) faults() string {
	var all []string
	for _, f := range []struct {
		n    int64
		what string
	}{
		{v.Lost, "lost"}, {v.Duplicates, "duplicated"}, {v.Gaps, "gaps"}, {v.SessionsLost, "sessions lost"}, {v.Refused, "publishes refused"},
	} {
		if f.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	if v.Delivered != v.Expected && v.Lost == 0 {
		all = append(all, fmt.Sprintf("%d of %d delivered", v.Delivered, v.Expected))
	}
	return strings.Join(all, ", ")
}

// nothingLost looks at victims while the sink is attacked, too: it is the daemon
// that serves them.
func (r *Result) nothingLost() Verdict {
	v := Verdict{Demand: "no victim loses a message or its session, gets a message twice, or has a publish refused", Met: len(r.Attacks) > 0}
	var found []string
	var delivered int64
	for _, a := range r.Attacks {
		for during, p := range map[string]*Phase{"": &a.Live, " (sink)": &a.Sink} {
			delivered += p.Victims.Delivered
			if f := p.Victims.faults(); f != "" {
				found = append(found, a.Name+during+": "+f)
			}
		}
	}
	v.Met = v.Met && len(found) == 0
	v.Found = fmt.Sprintf("%d deliveries", delivered)
	if len(found) > 0 {
		v.Found = strings.Join(found, "; ")
	}
	return v
}

// withinBudget holds what the daemon accounts for to its budget, and the process to
// the limit that Go's runtime was given.
func (r *Result) withinBudget() Verdict {
	var accounted, resident int64
	for _, a := range r.Attacks {
		for _, p := range []Phase{a.Live, a.Sink} {
			accounted = max(accounted, p.Server.AccountedBytes)
			resident = max(resident, p.Server.ResidentBytes)
		}
	}
	return Verdict{
		Demand: fmt.Sprintf("memory stays within %s accounted, %s resident", mebibytes(r.BudgetBytes), mebibytes(r.MemoryLimit)),
		Met:    resident > 0 && accounted <= r.BudgetBytes && resident <= r.MemoryLimit,
		Found:  fmt.Sprintf("%s accounted, %s resident at most", mebibytes(accounted), mebibytes(resident)),
	}
}

func (r *Result) fastEnough() Verdict {
	var slow []string
	worst, most := "", 0.0
	for _, a := range r.Attacks {
		q := a.ratio()
		if q == 0 || q > mostRatio {
			slow = append(slow, fmt.Sprintf("%s %.2f", a.Name, q))
		}
		if q > most {
			worst, most = a.Name, q
		}
	}
	v := Verdict{
		Demand: fmt.Sprintf("victims' p99 is at most %d times that with a sink in the daemon's place", mostRatio),
		Met:    len(slow) == 0 && len(r.Attacks) > 0 && r.OverallRatio > 0 && r.OverallRatio <= mostRatio,
		Found:  fmt.Sprintf("%.2f overall, at most %.2f (%s)", r.OverallRatio, most, worst),
	}
	if len(slow) > 0 {
		v.Found = fmt.Sprintf("%.2f overall; %s", r.OverallRatio, strings.Join(slow, ", "))
	}
	return v
}

// carriedOut keeps a run from passing in which nobody was attacked.
func (r *Result) carriedOut() Verdict {
	v := Verdict{Demand: "every attack was carried out", Met: len(r.Attacks) > 0, Found: fmt.Sprintf("%d attacks", len(r.Attacks))}
	var none []string
	for _, a := range r.Attacks {
		for _, raid := range []Raid{a.Live.Raid, a.Sink.Raid} {
			if raid.Operations == 0 || raid.Connections == 0 || raid.NotBegun != "" {
				none = append(none, strings.TrimSpace(a.Name+" "+raid.NotBegun))
			}
		}
	}
	if len(none) > 0 {
		v.Met, v.Found = false, "not "+strings.Join(none, "; ")
	}
	return v
}

// noneReplaced looks at what became of the polls that were sent after abandoned ones.
func (a *Attacked) noneReplaced() Verdict {
	replaced := a.Live.Raid.Answers["409"]
	return Verdict{
		Demand: "no poll is replaced by one that its client has abandoned",
		Met:    replaced == 0,
		Found:  fmt.Sprintf("%d of %d polls", replaced, a.Live.Raid.Operations),
	}
}

func mebibytes(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }
