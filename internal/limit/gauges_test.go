package limit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// Limits for one address or one session have no gauge of their use: it would have to name
// the address or the session.
func TestOnlySharedLimitsHaveAGaugeOfTheirUse(t *testing.T) {
	m := metrics.New("test")
	l := New(Config{Calls: 7, AddressCalls: 5}, m)
	m.Gather(func() (g metrics.Gauges) {
		l.Gauges(&g)
		return g
	})
	call, err := l.Begin(t.Context(), l.WhoAt(at("192.0.2.1")), false)
	require.NoError(t, err)
	defer call.End()

	limits, used := labelled(t, m, "pubsubd_limit"), labelled(t, m, "pubsubd_in_use")
	require.EqualValues(t, 5, limits["address_calls"])
	require.EqualValues(t, 1, used["calls"])
	for _, ofOne := range []string{"address_calls", "address_connections", "pending_messages_per_session"} {
		require.Contains(t, limits, ofOne)
		require.NotContains(t, used, ofOne)
	}
}

// In Prometheus rate() sees the first refusal only if the counter was 0 before.
func TestTheRatesOfTheConfigurationAreCountedFromZero(t *testing.T) {
	m := metrics.New("test")
	l := New(Config{Rates: Rates{Polls: {Address: {PerSecond: 1}}}, Rules: []Rule{{Name: "chat", Pattern: "chat.>", Rate: Rate{PerSecond: 1}}}}, m)
	limited := func() map[string]float64 { return labelled(t, m, "pubsubd_limited_total") }
	require.Contains(t, limited(), "rates.polls.address")
	require.Contains(t, limited(), "topics.chat.rate")
	require.NotContains(t, limited(), "rates.polls.all", "which is not limited")
	l.Reload(Config{Rates: Rates{Polls: {All: {PerSecond: 1}}}})
	require.Contains(t, limited(), "rates.polls.all")
}

// labelled returns the samples of a metric by its limit.
func labelled(t *testing.T, m *metrics.Metrics, name string) map[string]float64 {
	families, err := m.Registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, sample := range family.GetMetric() {
			values[sample.GetLabel()[0].GetValue()] = sample.GetGauge().GetValue()
		}
	}
	return values
}
