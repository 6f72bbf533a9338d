package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
)

func TestChangesAreToldKeyByKey(t *testing.T) {
	was, is := Default(), Default()
	was.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a.>", Slow: broker.Conflate}, {Name: "gone", Pattern: "b"}}
	is.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a.>", HistoryAge: time.Second}, {Name: "new", Pattern: "c"}}
	is.Log.Level, is.Lane = "debug", "off"
	require.Equal(t, []Change{
		{"log.level", "info", "debug", true},
		{"lane", "handoff", "off", false},
		{"topics.a.history.age", "", "1s", true},
		{"topics.a.slow", "conflate", "", true},
		{"topics.gone.pattern", "b", "", true},
		{"topics.new.pattern", "", "c", true},
	}, was.Changes(is))
	require.Empty(t, is.Changes(is))
}

// What a reload makes of the defaults is, setting by setting, either the one or the
// other, as the table says; and it is told so.
func TestAReloadTakesOverWhatIsLive(t *testing.T) {
	was, to := Default(), everything(t)
	is := was.Reloaded(to)
	require.Equal(t, Default(), was)
	for i, s := range settings(&is) {
		want := settings(&was)[i]
		if s.field.live() {
			want = settings(&to)[i]
		}
		require.Equal(t, want.field.text(), s.field.text(), s.key)
	}
	require.Equal(t, to.Broker.Rules, is.Broker.Rules)
	for _, change := range is.Changes(to) {
		require.False(t, change.Live, change.Key)
	}
	for _, change := range was.Changes(is) {
		require.True(t, change.Live, change.Key)
	}
	require.Len(t, was.Changes(to), len(is.Changes(to))+len(was.Changes(is)))
}
