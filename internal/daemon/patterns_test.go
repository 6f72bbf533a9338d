package daemon

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A follower is a client library's subscription to a pattern.
type follower struct {
	*testing.T
	sub *pubsub.Subscription
}

func (f *follower) want(want ...string) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), surely)
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

// A subscriber to a pattern gets new topics from their first message on. It can stop and
// resume from its positions, in every mode.
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
			f.sub, err = client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow(topic("*"))}, options...)
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
				starts[i] = pubsub.FromPosition(p)
			}
			f.sub, err = client.Subscribe(t.Context(), starts, options...)
			require.NoError(t, err)
			defer f.sub.Close()
			publish("d", "6")
			f.want(topic("a 4"), topic("c 5"), topic("d 6"))
			_, err = f.sub.Change(t.Context(), []wire.Start{pubsub.FromNow(topic("other"))}, []string{topic("*")})
			require.NoError(t, err)
			publish("e", "7")
			publish("other", "8")
			f.want(topic("other 8"))
		})
	}
}

// A pattern matches a topic more than fit. The client tells the program, keeps the subscription,
// and remembers no position of the topic. When there is room again, the topic goes on.
func TestTheClientKeepsAPatternOfWhichATopicDoesNotFit(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]pubsub.SubscribeOption{
		"batch": {pubsub.WithMode(pubsub.Batch)}, "websocket": {pubsub.WithTransport(pubsub.WebSocket)}, "stream": {pubsub.WithMode(pubsub.Stream)},
		"stateless": {pubsub.Stateless()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, func(c *config.Config) { c.Session.PatternBytes = 2 * broker.BytesOf("p.1") })
			client, err := pubsub.New("http://" + d.PublicAddr())
			require.NoError(t, err)
			defer client.Close()
			sub, err := client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow("p.*")}, options...)
			require.NoError(t, err)
			defer sub.Close()
			publish := func(topic, payload string) {
				_, err := client.Publish(t.Context(), topic, "", []byte(payload))
				require.NoError(t, err)
			}
			next := func() pubsub.Item {
				ctx, cancel := context.WithTimeout(t.Context(), surely)
				defer cancel()
				item, err := sub.Next(ctx)
				require.NoError(t, err)
				return item
			}
			wantMessage := func(payload string) (gaps []wire.Gap) {
				for {
					item := next()
					if item.Gap == nil {
						require.Equal(t, payload, string(item.Message.Data))
						return gaps
					}
					require.Equal(t, wire.GapUnfollowed, item.Gap.Reason)
					gaps = append(gaps, *item.Gap)
				}
			}
			publish("p.1", "1")
			wantMessage("1")
			publish("p.2", "2")
			wantMessage("2")
			publish("p.3", "0")
			publish("p.1", "3")
			gaps := wantMessage("3")
			publish("p.2", "4")
			gaps = append(gaps, wantMessage("4")...)
			require.NotEmpty(t, gaps)
			for _, gap := range gaps {
				require.True(t, gap.IsLeftOut())
			}
			require.Len(t, sub.Positions(), 3, "of the pattern and the two that it follows")
			if name == "stateless" {
				return // the next poll begins with the first message
			}
			cfg := d.sessions.Config()
			cfg.PatternBytes *= 2
			d.sessions.Reload(cfg)
			again := next().Gap
			require.NotNil(t, again)
			require.Equal(t, "p.3", again.Topic)
			require.EqualValues(t, 1, again.Position.Offset)
			publish("p.3", "5")
			require.Empty(t, wantMessage("5"))
			require.Len(t, sub.Positions(), 4)
		})
	}
}

func TestTheClientContinuesWhenATopicIsCreated(t *testing.T) {
	d := start(t, nil)
	client, err := pubsub.New("http://" + d.PublicAddr())
	require.NoError(t, err)
	defer client.Close()
	retried := make(chan error, 100)
	f := follower{T: t}
	f.sub, err = client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow("job.*")}, pubsub.WithRetryNotify(func(err error, _ time.Duration) { retried <- err }))
	require.NoError(t, err)
	defer f.sub.Close()
	for i := range 6 {
		topic := fmt.Sprintf("job.%d", i)
		_, err := client.Publish(t.Context(), topic, "", []byte("1"))
		require.NoError(t, err)
		f.want(topic + " 1")
	}
	require.Empty(t, retried, "a topic that is new is no failure")
}

func TestNamingATopicOfAPatternChangesNothing(t *testing.T) {
	d := start(t, nil)
	client, err := pubsub.New("http://" + d.PublicAddr())
	require.NoError(t, err)
	defer client.Close()
	f := follower{T: t}
	f.sub, err = client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow("a.*")})
	require.NoError(t, err)
	defer f.sub.Close()
	var all []string
	for i := range 200 {
		_, err := client.Publish(t.Context(), "a.x", "", fmt.Append(nil, i))
		require.NoError(t, err)
		all = append(all, fmt.Sprintf("a.x %d", i))
	}
	_, err = f.sub.Change(t.Context(), []wire.Start{pubsub.FromNow("a.x")}, []string{"a.y"})
	require.NoError(t, err)
	f.want(all...)
	_, err = f.sub.Change(t.Context(), nil, []string{"a.x"})
	require.NoError(t, err)
	_, err = client.Publish(t.Context(), "a.x", "", []byte("200"))
	require.NoError(t, err)
	f.want("a.x 200")
}

// Topics come and go. The client must not remember all of them.
func TestTheClientForgetsTopicsThatTheDaemonHasForgotten(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]pubsub.SubscribeOption{
		"session": nil, "stream": {pubsub.WithMode(pubsub.Stream)}, "stateless": {pubsub.Stateless()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, func(c *config.Config) { c.Broker.HistoryAge = time.Hour })
			client, err := pubsub.New("http://" + d.PublicAddr())
			require.NoError(t, err)
			defer client.Close()
			f := follower{T: t}
			f.sub, err = client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow("job.*")}, options...)
			require.NoError(t, err)
			defer f.sub.Close()
			var jobs, most int
			publish := func() {
				_, err := client.Publish(t.Context(), fmt.Sprintf("job.%d", jobs), "", []byte("1"))
				require.NoError(t, err)
				jobs++
			}
			next := func() { // a message, or a gap because it has expired
				_, err := f.sub.Next(t.Context())
				require.NoError(t, err)
			}
			for jobs < 400 {
				publish()
			}
			for range jobs {
				next()
			}
			d.reloadWith(func(c *config.Config) { c.Broker.HistoryAge = time.Millisecond })
			for jobs < 4000 {
				if jobs%200 == 0 {
					d.wantFewTopics()
				}
				publish()
				next()
				now := len(f.sub.Positions())
				if most = max(most, now); now < most/2 {
					return
				}
			}
			require.Fail(t, "none was forgotten", "%d jobs, %d positions", jobs, most)
		})
	}
}

// wantFewTopics waits until the daemon has forgotten almost all topics.
func (d *running) wantFewTopics() {
	d.Helper()
	require.Eventually(d, func() bool { return d.gauges().Topics < 10 }, surely, 10*time.Millisecond)
}
