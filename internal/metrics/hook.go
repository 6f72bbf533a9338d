package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Hook counts the calls of one hook.
type Hook struct {
	calls   *prometheus.CounterVec
	seconds prometheus.Observer
}

// Hook returns the counters of the hook of that name, whose calls have these outcomes.
func (m *Metrics) Hook(name string, outcomes ...string) *Hook {
	h := &Hook{
		calls:   m.hookCalls.MustCurryWith(prometheus.Labels{"hook": name}),
		seconds: m.hookSeconds.WithLabelValues(name),
	}
	for _, outcome := range outcomes {
		h.calls.WithLabelValues(outcome)
	}
	return h
}

// Called counts one call that ended with the given outcome, or could not be made.
func (h *Hook) Called(outcome string) { h.calls.WithLabelValues(outcome).Inc() }

// Took records how long the application took to answer.
func (h *Hook) Took(d time.Duration) { h.seconds.Observe(d.Seconds()) }
