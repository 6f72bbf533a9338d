package config

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
)

func TestChangesAreReportedByKey(t *testing.T) {
	was, is := Default(), Default()
	was.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a.>", Slow: broker.Conflate}, {Name: "gone", Pattern: "b"}}
	is.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a.>", HistoryAge: time.Second}, {Name: "new", Pattern: "c"}}
	was.Limit.Rules = []limit.Rule{{Name: "a", Pattern: "a.>"}, {Name: "gone", Pattern: "b", Rate: limit.Rate{PerSecond: 5}}}
	is.Limit.Rules = []limit.Rule{{Name: "a", Pattern: "a.>", Rate: limit.Rate{PerSecond: 0.5, Burst: 7}}, {Name: "new", Pattern: "c"}}
	is.Limit.Rates[limit.Polls][limit.Address] = limit.Rate{PerSecond: 10}
	is.Limit.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	is.Limit.Connections = 500
	is.Log.Level, is.Lane = "debug", "off"
	require.Equal(t, []Change{
		{"log.level", "info", "debug", true},
		{"limits.connections", "auto", "500", true},
		{"trusted_proxies", "", "10.0.0.0/8,::1", true},
		{"lane", "handoff", "off", false},
		{"rates.polls.address", "off", "10/s", true},
		{"topics.a.history.age", "", "1s", true},
		{"topics.a.slow", "conflate", "", true},
		{"topics.a.rate", "", "30/m burst 7", true},
		{"topics.gone.pattern", "b", "", true},
		{"topics.gone.rate", "5/s", "", true},
		{"topics.new.pattern", "", "c", true},
	}, was.Changes(is))
	require.Empty(t, is.Changes(is))
}

// A reload changes exactly the settings that the table marks as live, and Changes says so.
func TestAReloadChangesLiveSettings(t *testing.T) {
	was, to := Default(), everything(t)
	is := was.Reloaded(to)
	require.Equal(t, Default(), was)
	for i, s := range settings(&is) {
		want := settings(&was)[i]
		if !s.restart {
			want = settings(&to)[i]
		}
		require.Equal(t, want.text(), s.text(), s.key)
	}
	require.Equal(t, to.Broker.Rules, is.Broker.Rules)
	require.Equal(t, to.Limit, is.Limit, "all limits are live")
	for _, change := range is.Changes(to) {
		require.False(t, change.Live, change.Key)
	}
	for _, change := range was.Changes(is) {
		require.True(t, change.Live, change.Key)
	}
	require.Len(t, was.Changes(to), len(is.Changes(to))+len(was.Changes(is)))
}

// The start of the daemon decides which topics are ephemeral: a reload neither makes a rule ephemeral nor
// undoes it, and says so.
func TestAReloadChangesNoEphemeralRule(t *testing.T) {
	was, to := Default(), Default()
	was.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a", Ephemeral: true}, {Name: "b", Pattern: "b"}, {Name: "gone", Pattern: "c", Ephemeral: true}}
	to.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a"}, {Name: "b", Pattern: "b", Ephemeral: true}, {Name: "new", Pattern: "d", Ephemeral: true}}
	is := was.Reloaded(to)
	require.Equal(t, []broker.Rule{{Name: "a", Pattern: "a", Ephemeral: true}, {Name: "b", Pattern: "b"}, {Name: "new", Pattern: "d"}}, is.Broker.Rules)
	require.True(t, to.Broker.Rules[1].Ephemeral, "what was read stays")
	require.Equal(t, []Change{
		{"topics.a.ephemeral", "true", "", false},
		{"topics.b.ephemeral", "", "true", false},
		{"topics.gone.pattern", "c", "", true},
		{"topics.gone.ephemeral", "true", "", false},
		{"topics.new.pattern", "", "d", true},
		{"topics.new.ephemeral", "", "true", false},
	}, was.Changes(to))
}
