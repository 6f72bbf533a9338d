package loadtest

import "time"

// never is later than any test.
const never = time.Duration(1<<63 - 1)

// A schedule is an endless row of evenly spaced instants: perPeriod of them in
// each period. Every instant is reckoned from the start, so none inherits the
// lateness or the rounding of the one before.
type schedule struct {
	start     time.Duration
	period    time.Duration
	perPeriod int
}

// instant returns the nth instant, from 0.
func (s schedule) instant(n int) time.Duration {
	whole, part := n/s.perPeriod, n%s.perPeriod
	return s.start + time.Duration(whole)*s.period + time.Duration(part)*s.period/time.Duration(s.perPeriod)
}

// within returns how many instants lie in the given time from the start.
func (s schedule) within(d time.Duration) int {
	n := int(d/s.period) * s.perPeriod
	for s.instant(n) < s.start+d {
		n++
	}
	return n
}

// nearest returns the n whose instant is nearest to the given time after the
// start, at least 0.
func (s schedule) nearest(after time.Duration) int {
	whole := int(after / s.period)
	rest := (after % s.period) * time.Duration(s.perPeriod)
	return max(whole*s.perPeriod+int((rest+s.period/2)/s.period), 0)
}
