package daemon

import "time"

// warnEvery is how often is logged what may happen many times a second.
const warnEvery = 10 * time.Second

// A seldom is when something of the kind was logged last.
type seldom struct{ last time.Time }

// due reports whether it is to be logged now, which counts as done then.
func (s *seldom) due(now time.Time) bool {
	if now.Sub(s.last) < warnEvery {
		return false
	}
	s.last = now
	return true
}
