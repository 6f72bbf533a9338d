package daemon

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// ways are the options with which the Go client can subscribe, by transport and format.
var ways = map[string][]pubsub.SubscribeOption{
	"long poll":             {pubsub.WithTransport(pubsub.LongPoll)},
	"long poll, CBOR":       {pubsub.WithTransport(pubsub.LongPoll), pubsub.WithFormat(pubsub.CBOR)},
	"multiple, CBOR":        {pubsub.WithMode(pubsub.Multiple), pubsub.WithFormat(pubsub.CBOR)},
	"stream":                {pubsub.WithTransport(pubsub.HTTPStream)},
	"stateless stream":      {pubsub.WithTransport(pubsub.HTTPStream), pubsub.Stateless()},
	"stream, CBOR":          {pubsub.WithTransport(pubsub.HTTPStream), pubsub.WithFormat(pubsub.CBOR)},
	"server-sent events":    {pubsub.WithTransport(pubsub.SSE)},
	"WebSocket":             {pubsub.WithTransport(pubsub.WebSocket)},
	"WebSocket, CBOR":       {pubsub.WithTransport(pubsub.WebSocket), pubsub.WithFormat(pubsub.CBOR)},
	"TCP":                   {pubsub.WithTransport(pubsub.TCP)},
	"whatever gets through": nil,
}

// Connections are cut repeatedly while two topics are published to. Then the client drops
// one topic. Every transport delivers each message once and in order.
func TestCutConnectionsLoseNothing(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"handoff", "off"} {
		d := start(t, func(c *config.Config) { c.Listen.TCP, c.Lane = "127.0.0.1:0", lane })
		for name, options := range ways {
			t.Run(lane+"/"+name, func(t *testing.T) { d.cutWhileSubscribed(t, options) })
		}
	}
}

// A client that has received nothing yet is cut. What is published before it returns comes, and
// after a second cut, too.
func TestAClientThatIsCutBeforeItsFirstMessageLosesNothing(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"handoff", "off"} {
		d := start(t, func(c *config.Config) { c.Listen.TCP, c.Lane = "127.0.0.1:0", lane })
		for name, options := range ways {
			t.Run(lane+"/"+name, func(t *testing.T) { d.cutBeforeTheFirst(t, options) })
		}
	}
}

// throughLines returns a client, and the lines by which it reaches the daemon.
func (d *running) throughLines(t *testing.T) (client *pubsub.Client, public, tcp *line) {
	public, tcp = newLine(t), newLine(t)
	public.passTo(d.PublicAddr())
	tcp.passTo(d.TCPAddr())
	client, err := pubsub.New("http://"+public.Addr().String(), pubsub.WithTCPAddr(tcp.Addr().String(), nil), pubsub.WithMaxBackoff(20*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client, public, tcp
}

func (d *running) cutBeforeTheFirst(t *testing.T, options []pubsub.SubscribeOption) {
	client, public, tcp := d.throughLines(t)
	topic := fmt.Sprintf("zero.%d", rand.Uint64())
	sub, err := client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow(topic)}, options...)
	require.NoError(t, err)
	defer sub.Close()
	ctx, cancel := context.WithTimeout(t.Context(), aMinute)
	defer cancel()
	for n := range 2 {
		public.passTo("")
		tcp.passTo("")
		d.post("/v1/topics/"+topic+"/messages", fmt.Sprint(n))
		public.passTo(d.PublicAddr())
		tcp.passTo(d.TCPAddr())
		item, err := sub.Next(ctx)
		require.NoError(t, err)
		require.Nil(t, item.Gap)
		require.Equal(t, fmt.Sprint(n), string(item.Message.Data))
	}
}

func (d *running) cutWhileSubscribed(t *testing.T, options []pubsub.SubscribeOption) {
	client, public, tcp := d.throughLines(t)
	a, b := fmt.Sprintf("cut.a%d", rand.Uint64()), fmt.Sprintf("cut.b%d", rand.Uint64())
	sub, err := client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow(a), pubsub.FromNow(b)}, options...)
	require.NoError(t, err)
	defer sub.Close()

	messages := 120 / exhaustive.Step(3)
	ahead := make(chan struct{}, 12) // bounds how far the publisher is ahead of the subscriber
	go func() {
		for n := range messages {
			for _, topic := range []string{a, b} {
				ahead <- struct{}{}
				d.post("/v1/topics/"+topic+"/messages", fmt.Sprint(n))
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 2*aMinute)
	defer cancel()
	next := map[string]uint64{a: 1, b: 1}
	for n := range 2 * messages {
		if n%20 == 7 {
			public.passTo(d.PublicAddr())
			tcp.passTo(d.TCPAddr())
		}
		item, err := sub.Next(ctx)
		require.NoError(t, err, "%v", next)
		require.Nil(t, item.Gap, "%v", item.Gap)
		p := item.Message.Position
		require.Equal(t, next[p.Topic], p.Offset, p.Topic)
		require.Equal(t, fmt.Sprint(p.Offset-1), string(item.Message.Data))
		next[p.Topic]++
		<-ahead
	}
	_, err = sub.Change(ctx, nil, []string{a})
	require.NoError(t, err)
	d.post("/v1/topics/"+a+"/messages", "1")
	d.post("/v1/topics/"+b+"/messages", "2")
	item, err := sub.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, b, item.Message.Position.Topic)
}
