package broker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheMostSpecificRuleCounts(t *testing.T) {
	r := newRules(Config{
		HistoryMessages: 7, HistoryBytes: 100, HistoryAge: time.Minute,
		Rules: []Rule{
			{Name: "all", Pattern: "prices.>", HistoryMessages: 2},
			{Name: "acme", Pattern: "prices.acme.*", Slow: Conflate},
			{Name: "any", Pattern: "*.acme.bid", HistoryAge: time.Second, Slow: DropOldest, Keep: 3},
		},
	})
	require.Equal(t, Rule{Name: "acme", Pattern: "prices.acme.*", HistoryMessages: 7, HistoryBytes: 100, HistoryAge: time.Minute, Slow: Conflate, Keep: DefaultKeep},
		*r.of("prices.acme.bid"), "what it does not say is the general setting")
	require.Equal(t, "all", r.of("prices.x").Name)
	require.Equal(t, 2, r.of("prices.x").HistoryMessages)
	require.Equal(t, "any", r.of("quotes.acme.bid").Name)
	require.Equal(t, Rule{HistoryMessages: 7, HistoryBytes: 100, HistoryAge: time.Minute, Slow: Resume, Keep: DefaultKeep}, *r.of("chat"))
}
