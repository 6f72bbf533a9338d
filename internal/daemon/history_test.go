package daemon

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A chat shows the newest messages, older ones when its user scrolls up, and new ones as they
// come. None is missing, and none comes twice.
func TestTheClientReadsBackwardsAndContinuesLive(t *testing.T) {
	d := start(t, nil)
	client, err := pubsub.New("http://" + d.PublicAddr())
	require.NoError(t, err)
	defer client.Close()
	empty, err := client.History(t.Context(), "chat", wire.Position{}, 3)
	require.NoError(t, err)
	require.Empty(t, empty.Items)
	require.False(t, empty.More)
	for n := range 8 {
		d.post("/v1/topics/chat/messages", fmt.Sprint(n))
	}
	texts := func(items []pubsub.Item) (texts []string) {
		for _, item := range items {
			require.Nil(t, item.Gap)
			texts = append(texts, string(item.Message.Data))
		}
		return texts
	}
	page, err := client.History(t.Context(), "chat", wire.Position{}, 3)
	require.NoError(t, err)
	shown, before, more := texts(page.Items), page.Before, page.More
	d.post("/v1/topics/chat/messages", "8")
	for more {
		older, err := client.History(t.Context(), "chat", before, 3)
		require.NoError(t, err)
		shown, before, more = append(texts(older.Items), shown...), older.Before, older.More
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7"}, shown)
	for _, from := range []struct {
		start wire.Start
		first int
	}{{page.Next, 8}, {empty.Next, 0}} {
		sub, err := client.Subscribe(t.Context(), []wire.Start{from.start})
		require.NoError(t, err)
		f := follower{T: t, sub: sub}
		for n := from.first; n <= 8; n++ {
			f.want(fmt.Sprint("chat ", n))
		}
		sub.Close()
	}
}

// Over every transport a client begins with the newest messages of a topic, and of each topic of
// a pattern. After its connection was cut it continues from its positions.
func TestTheClientBeginsWithTheNewestMessages(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"handoff", "off"} {
		d := start(t, func(c *config.Config) { c.Listen.TCP, c.Lane = "127.0.0.1:0", lane })
		for n := range 4 {
			for _, topic := range []string{"news", "chat.a", "chat.b"} {
				d.post("/v1/topics/"+topic+"/messages", fmt.Sprint(n))
			}
		}
		count := 3
		for name, options := range ways {
			t.Run(lane+"/"+name, func(t *testing.T) {
				client, public, tcp := d.throughLines(t)
				ctx, cancel := context.WithTimeout(t.Context(), aMinute)
				defer cancel()
				sub, err := client.Subscribe(ctx, []wire.Start{pubsub.FromNewest("news", 1), pubsub.FromNewest("chat.*", 2)}, options...)
				require.NoError(t, err)
				defer sub.Close()
				f := follower{T: t, sub: sub}
				at := func(behind int) string { return fmt.Sprint(" ", count-behind) }
				f.want("news"+at(0), "chat.a"+at(1), "chat.a"+at(0), "chat.b"+at(1), "chat.b"+at(0))
				public.passTo("")
				tcp.passTo("")
				count++
				for _, topic := range []string{"news", "chat.a", "chat.b"} {
					d.post("/v1/topics/"+topic+"/messages", fmt.Sprint(count))
				}
				public.passTo(d.PublicAddr())
				tcp.passTo(d.TCPAddr())
				f.want("news"+at(0), "chat.a"+at(0), "chat.b"+at(0))
			})
		}
	}
}
