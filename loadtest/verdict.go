package loadtest

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Exit codes of a load test, by precedence: what went wrong says more than what
// was slow, and what was slow more than what could not be measured.
const (
	ExitOK             = 0
	ExitFailed         = 1 // errors: the test is not what it was meant to be
	ExitMissed         = 3 // an objective was missed: loss, duplicates, disorder, late bursts, latency
	ExitGeneratorBound = 4 // all fine, but the figures are the generator's limits
)

// Bounds of a generator that can be believed.
const (
	busyThreshold  = 0.9
	lagOfPeriod    = 0.1                   // share of the period
	lagOfLatencies = 0.5                   // share of the 99th percentile of latency
	leastLag       = 10 * time.Millisecond // no tighter than that
)

// lagThreshold is what the 99th percentile of the schedule lag may be. The lag is
// part of every latency, so it must not be most of it; nor must it bend the
// schedule, if there is a period (0: none). Below 10 ms it never matters.
func lagThreshold(period, p99 time.Duration) time.Duration {
	allowed := time.Duration(lagOfLatencies * float64(p99))
	if period > 0 {
		allowed = min(allowed, time.Duration(lagOfPeriod*float64(period)))
	}
	return max(allowed, leastLag)
}

// Failed returns why the run failed or an objective was missed; none if all is
// well, whether or not the generator was bound.
func (r *Result) Failed() []string {
	return append(append([]string{}, r.Verdict.Failed...), r.Verdict.Missed...)
}

// GeneratorBound reports whether the figures are the generator's limits rather
// than the server's.
func (r *Result) GeneratorBound() bool { return len(r.Verdict.GeneratorBound) > 0 }

// ExitCode returns what a process that ran the test exits with.
func ExitCode(r Result) int {
	switch {
	case len(r.Verdict.Failed) > 0:
		return ExitFailed
	case len(r.Verdict.Missed) > 0:
		return ExitMissed
	case r.GeneratorBound():
		return ExitGeneratorBound
	}
	return ExitOK
}

// endedEarly is the kind of failure that leaves nothing to compare with objectives.
const endedEarly = "ended early"

// EndedEarly reports whether the test was not run to its end.
func (r *Result) EndedEarly() bool {
	return slices.ContainsFunc(r.Errors, func(f Failure) bool { return f.Kind == endedEarly })
}

// judge fills in the verdict from everything else. Of a test that ended early
// there is nothing to say but that.
func (r *Result) judge() {
	r.Verdict = Verdict{Failed: r.failures(), Missed: []string{}, GeneratorBound: []string{}}
	if !r.EndedEarly() {
		r.Verdict.Missed, r.Verdict.GeneratorBound = r.missed(), r.bound()
	}
	r.Verdict.ExitCode = ExitCode(*r)
}

// alsoFailed adds a failure that was found after everything else, and returns both
// errors.
func (r *Result) alsoFailed(before, failure error) error {
	if failure != nil && r.Scenario != "" {
		r.Errors = append(r.Errors, Failure{Kind: "server", Count: 1, First: failure.Error()})
		r.judge()
	}
	return errors.Join(before, failure)
}

func (r *Result) failures() []string {
	reasons := []string{}
	for _, f := range r.Errors {
		if f.Kind == endedEarly {
			reasons = append(reasons, fmt.Sprintf("%s: %s", f.Kind, f.First))
			continue
		}
		reasons = append(reasons, fmt.Sprintf("%s: %d, the first: %s", f.Kind, f.Count, f.First))
	}
	if r.Deliveries.Expected == 0 {
		reasons = append(reasons, "nothing was published")
	}
	return reasons
}

// missed compares with the objectives. Loss has a stated bound; for duplicates,
// disorder, unannounced epochs and late bursts it is always zero.
func (r *Result) missed() []string {
	d := r.Deliveries
	reasons := []string{}
	add := func(missed bool, format string, args ...any) {
		if missed {
			reasons = append(reasons, fmt.Sprintf(format, args...))
		}
	}
	add(d.Lost > r.Parameters.MaxLoss, "%d of %d deliveries were lost; the limit is %d", d.Lost, d.Expected, r.Parameters.MaxLoss)
	add(d.Surplus > 0, "%d deliveries of messages whose publish was refused", d.Surplus)
	add(d.Duplicates > 0, "%d duplicates", d.Duplicates)
	add(d.Disordered > 0, "%d deliveries out of order", d.Disordered)
	add(d.EpochChanges > 0, "%d changes of the epoch without a gap frame", d.EpochChanges)
	if b := r.Bursts; b != nil {
		add(b.InTime < b.Total, "only %d of %d bursts in time", b.InTime, b.Total)
	}
	limit := r.Parameters.MaxP99MS
	add(limit > 0 && r.Latency.P99MS > limit, "p99 of latency is %.3f ms; at most %.3f ms is allowed", r.Latency.P99MS, limit)
	return reasons
}

// bound judges the generator. Within a burst its thread is nearly always busy or
// waiting for a core, since a burst is as fast as the slower side: that matters
// only if bursts were late.
func (r *Result) bound() []string {
	g := &r.Generator
	reasons := []string{}
	if t := g.Thread; t.Busy+t.Waited > busyThreshold {
		reasons = append(reasons, fmt.Sprintf("the generator's thread was %s", occupied(t.Busy, t.Waited)))
	}
	late := r.Bursts != nil && r.Bursts.InTime < r.Bursts.Total
	if t := g.Thread; late && t.BusyInBursts+t.WaitedInBursts > busyThreshold {
		reasons = append(reasons, fmt.Sprintf("bursts were late, and during bursts the generator's thread was %s", occupied(t.BusyInBursts, t.WaitedInBursts)))
	}
	for i := range r.Agents {
		reasons = append(reasons, r.Agents[i].bound(late, g.LagThresholdMS)...)
	}
	if g.ScheduleLag.P99MS > g.LagThresholdMS {
		reasons = append(reasons, fmt.Sprintf("p99 of the schedule lag is %.3f ms, above %.3f ms (%d publishes waited for a connection)",
			g.ScheduleLag.P99MS, g.LagThresholdMS, r.Publishes.Waited))
	}
	return reasons
}

// bound judges an agent as bound does its coordinator. A clock that is known less
// well than the schedule's lag must be would blur latencies as much.
func (a *AgentResult) bound(late bool, threshold float64) []string {
	reasons := []string{}
	t := &a.Generator.Thread
	if t.Busy+t.Waited > busyThreshold {
		reasons = append(reasons, fmt.Sprintf("the thread of agent %s was %s", a.Address, occupied(t.Busy, t.Waited)))
	}
	if late && t.BusyInBursts+t.WaitedInBursts > busyThreshold {
		reasons = append(reasons, fmt.Sprintf("bursts were late, and during bursts the thread of agent %s was %s", a.Address, occupied(t.BusyInBursts, t.WaitedInBursts)))
	}
	if a.Clock.UncertaintyMS > threshold {
		reasons = append(reasons, fmt.Sprintf("the clock of agent %s is known only to ± %.3f ms, above %.3f ms", a.Address, a.Clock.UncertaintyMS, threshold))
	}
	return reasons
}

func occupied(busy, waited float64) string {
	return fmt.Sprintf("%.0f %% busy and %.0f %% waiting for a core", 100*busy, 100*waited)
}
