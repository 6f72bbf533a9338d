package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Label values that are known in advance. Limits that a configuration names are
// announced by their owners.
var (
	limits      = []string{"topics", "all_subscriptions", "stateless_sessions", "calls", "sessions", "address_calls", "connections", "address_connections", "pending_messages_per_session", "open_files", "memory", "fan_out"}
	evictions   = []string{"expired", "evicted", "deleted", "memory"}
	sessionEnds = []string{"closed", "inactive", "draining", "slow", "topics"}
	pollEnds    = []string{outcomeFrames, "empty", "gone", string(wire.CodeStaleAck), string(wire.CodeAckBeyondSent), string(wire.CodePollReplaced), string(wire.CodeSessionEnded), string(wire.CodeDraining)}
)

// announce makes every series whose labels are known at 0: rate() sees the first event
// only of a series that was there before it.
func (m *Metrics) announce() {
	for _, reason := range wire.GapReasons() {
		m.Gaps.WithLabelValues(string(reason))
	}
	for code := range wire.Codes() {
		m.Refused.WithLabelValues(string(code))
	}
	for _, why := range endings {
		m.ConnectionsEnded.WithLabelValues(string(why))
	}
	announce(m.Limited, limits)
	announce(m.Evicted, evictions)
	announce(m.SessionsEnded, sessionEnds)
}

func announce(c *prometheus.CounterVec, values []string) {
	for _, value := range values {
		c.WithLabelValues(value)
	}
}
