package daemon

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A follower is a subscription of the client library to a pattern.
type follower struct {
	*testing.T
	sub *pubsub.Subscription
}

func (f *follower) want(want ...string) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 10*time.Second)
	defer cancel()
	var got []string
	for range want {
		item, err := f.sub.Next(ctx)
		require.NoError(f, err, "after %v", got)
		require.Nil(f, item.Gap, "after %v", got)
		got = append(got, item.Message.Position.Topic+" "+string(item.Message.Data))
	}
	require.ElementsMatch(f, want, got)
}

// A subscriber to a pattern gets topics that it has never heard of from their first
// message on, over a stop and a resume from its positions, on every way.
func TestTheClientFollowsPatterns(t *testing.T) {
	d := start(t, nil)
	client, err := pubsub.New("http://" + d.PublicAddr())
	require.NoError(t, err)
	defer client.Close()
	for i, options := range [][]pubsub.SubscribeOption{
		{pubsub.WithMode(pubsub.Batch)}, {pubsub.WithMode(pubsub.Stream)}, {pubsub.WithMode(pubsub.Multiple)},
		{pubsub.Stateless()}, {pubsub.Stateless(), pubsub.WithMode(pubsub.Stream)}, {pubsub.Stateless(), pubsub.WithMode(pubsub.Single)},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			topic := func(name string) string { return fmt.Sprintf("way%d.%s", i, name) }
			publish := func(name, payload string) {
				_, err := client.Publish(t.Context(), topic(name), "", []byte(payload))
				require.NoError(t, err)
			}
			publish("a", "0")
			f := follower{T: t}
			f.sub, err = client.Subscribe(t.Context(), []wire.Start{pubsub.Now(topic("*"))}, options...)
			require.NoError(t, err)
			publish("a", "1")
			publish("b", "2")
			publish("b", "3")
			f.want(topic("a 1"), topic("b 2"), topic("b 3"))
			positions := f.sub.Positions()
			require.Len(t, positions, 3)
			f.sub.Close()
			publish("a", "4")
			publish("c", "5")
			starts := make([]wire.Start, len(positions))
			for i, p := range positions {
				starts[i] = pubsub.After(p)
			}
			f.sub, err = client.Subscribe(t.Context(), starts, options...)
			require.NoError(t, err)
			defer f.sub.Close()
			publish("d", "6")
			f.want(topic("a 4"), topic("c 5"), topic("d 6"))
			_, err = f.sub.Change(t.Context(), []wire.Start{pubsub.Now(topic("other"))}, []string{topic("*")})
			require.NoError(t, err)
			publish("e", "7")
			publish("other", "8")
			f.want(topic("other 8"))
		})
	}
}
