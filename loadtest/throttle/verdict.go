package throttle

import (
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// A Verdict is what became of a run, or of all.
type Verdict struct {
	Failed         []string `json:"failed"`          // why the figures do not count
	Missed         []string `json:"missed"`          // promises that the server broke, and objectives
	GeneratorBound []string `json:"generator_bound"` // why the figures are the generator's
	ExitCode       int      `json:"exit_code"`
}

func (v *Verdict) add(other Verdict) {
	v.Failed = append(v.Failed, other.Failed...)
	v.Missed = append(v.Missed, other.Missed...)
	v.GeneratorBound = append(v.GeneratorBound, other.GeneratorBound...)
}

func (v *Verdict) conclude() {
	switch {
	case len(v.Failed) > 0:
		v.ExitCode = loadtest.ExitFailed
	case len(v.Missed) > 0:
		v.ExitCode = loadtest.ExitMissed
	case len(v.GeneratorBound) > 0:
		v.ExitCode = loadtest.ExitGeneratorBound
	}
}

// Bounds of a generator that can be believed.
const (
	busyThreshold = 0.9
	lateOfCall    = 0.005                 // share of the time of a call
	leastLate     = 10 * time.Millisecond // ten times what timers have on a machine at rest
)

// relief is what to do for a generator that cannot be believed.
const relief = "run nothing else on this machine, or try longer calls (--call-time), a longer run (--duration) or fewer --users"

// judge says what became of a run.
func (r *Row) judge(t *trial, b *book) {
	t.backend.mu.Lock()
	defer t.backend.mu.Unlock()
	late := t.backend.late
	r.Hook = Hook{Calls: t.backend.calls, Most: t.backend.most, Unsigned: t.backend.unsigned.count, Bypassed: b.hook.count, Late: timesOf(late)}
	r.verdict = Verdict{Failed: []string{}, Missed: []string{}, GeneratorBound: []string{}}
	r.failures(b, t.backend.strange)
	r.promises(t, b)
	allowed := max(time.Duration(lateOfCall*float64(t.cfg.CallTime)), leastLate)
	bound := &r.verdict.GeneratorBound
	r.say(bound, r.Hook.Late.MeanMS > milliseconds(allowed), "the back end of the test answered %.1f ms late on average; at most %.1f ms is allowed: "+relief, r.Hook.Late.MeanMS, milliseconds(allowed))
	r.say(bound, r.Busy > busyThreshold, "the generator was %.0f %% busy: "+relief, 100*r.Busy)
}

// say adds a reason, if it holds.
func (r *Row) say(to *[]string, holds bool, format string, args ...any) {
	if holds {
		*to = append(*to, r.named(format, args...))
	}
}

func (r *Row) failures(b *book, strange faults) {
	failed := &r.verdict.Failed
	r.say(failed, b.failed.count > 0, "%d users failed, the first: %v", b.failed.count, b.failed.first)
	r.say(failed, strange.count > 0, "%d unexpected calls of the hook, the first: %v", strange.count, strange.first)
	r.say(failed, r.Completed.Count == 0, "no call was completed")
}

// promises are those of the server, which hold whatever its limits are.
func (r *Row) promises(t *trial, b *book) {
	missed, d := &r.verdict.Missed, &r.Delivered
	r.say(missed, d.accidents() > 0, "%d lost, %d duplicates, %d out of order, %d gaps, %d surplus", d.Lost, d.Duplicates, d.Disordered, d.Gaps, d.Surplus)
	r.say(missed, r.Untold > 0, "%d users got neither answer nor refusal, the first: %v", r.Untold, b.untold.first)
	r.say(missed, r.Late > 0, "%d requests were neither admitted nor refused within %v, the first: %v", r.Late, b.promise, b.late.first)
	r.say(missed, r.Hook.Unsigned > 0, "%d calls of the hook had no valid signature, the first: %v", r.Hook.Unsigned, t.backend.unsigned.first)
	r.say(missed, r.Hook.Bypassed > 0, "%d messages did not pass the hook exactly once, the first: %v", r.Hook.Bypassed, b.hook.first)
}

// objectives judges the time of calls.
func (r *Row) objectives(c *Config, what string, got Times) []string {
	missed := []string{}
	r.say(&missed, c.MaxMean > 0 && got.MeanMS > milliseconds(c.MaxMean), "%s took %.0f ms on average; at most %.0f ms is allowed", what, got.MeanMS, milliseconds(c.MaxMean))
	r.say(&missed, c.MaxP95 > 0 && got.P95MS > milliseconds(c.MaxP95), "p95 of %s is %.0f ms; at most %.0f ms is allowed", what, got.P95MS, milliseconds(c.MaxP95))
	return missed
}
