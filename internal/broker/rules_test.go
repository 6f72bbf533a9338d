package broker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestTheMostSpecificRuleCounts(t *testing.T) {
	r := newSettings(Config{
		HistoryMessages: 7, HistoryBytes: 100, HistoryAge: time.Minute,
		Rules: []Rule{
			{Name: "all", Pattern: "prices.>", HistoryMessages: 2},
			{Name: "acme", Pattern: "prices.acme.*", Slow: Conflate},
			{Name: "any", Pattern: "*.acme.bid", HistoryAge: time.Second, Slow: DropOldest, Keep: 3},
		},
	})
	require.Equal(t, Rule{Name: "acme", Pattern: "prices.acme.*", HistoryMessages: 7, HistoryBytes: 100, HistoryAge: time.Minute, Slow: Conflate, Keep: DefaultKeep, PresenceGrace: DefaultPresenceGrace},
		r.of("prices.acme.bid").Rule, "the rest is the general setting")
	require.Equal(t, "all", r.of("prices.x").Name)
	require.Equal(t, 2, r.of("prices.x").HistoryMessages)
	require.Equal(t, "any", r.of("quotes.acme.bid").Name)
	require.Equal(t, Rule{HistoryMessages: 7, HistoryBytes: 100, HistoryAge: time.Minute, Slow: Resume, Keep: DefaultKeep, PresenceGrace: DefaultPresenceGrace}, r.of("chat").Rule)
}

// A topic resolves its rule when it is created and on a reload. So does a route.
func TestATopicUsesItsRule(t *testing.T) {
	b := newBroker(Config{HookTopics: []string{"chat.*", "orders.>"}, Rules: []Rule{{Pattern: "chat.*", HistoryMessages: 1}}})
	for topic, asked := range map[string]bool{"chat.a": true, "chat.a.b": false, "orders.a.b": true, "a": false} {
		require.Equal(t, asked, b.Route(topic).Rule.Hook, topic)
		require.False(t, b.Route(topic).Exists)
		publish(t, b, topic)
		require.Equal(t, asked, b.Route(topic).Rule.Hook, topic)
		require.True(t, b.Route(topic).Exists)
	}
	require.Equal(t, "chat.*", b.Route("chat.b").Rule.Pattern)
	require.Empty(t, b.Route("orders.a").Rule.Pattern)

	old, forgotten := b.Route("chat.new"), b.Route("a")
	b.Sweep(time.Now().Add(time.Hour))
	b.Reload(Config{Rules: []Rule{{Pattern: "chat.*", HistoryMessages: 2}}}, time.Now())
	require.False(t, b.Route("chat.a").Rule.Hook)
	for range 3 {
		r, _ := b.Send(old, Claim{}, &wire.Message{Position: wire.Position{Topic: "chat.new"}, Data: []byte("1")}, 0, time.Now(), nil)
		require.NoError(t, r.Err)
	}
	state, _ := b.Topic("chat.new")
	require.Equal(t, 2, state.Messages, "by the current rule")
	r, _ := b.Send(forgotten, Claim{}, &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, 0, time.Now(), nil)
	require.NoError(t, r.Err)
	require.True(t, b.Has("a"), "a route to a forgotten topic creates it again")
}
