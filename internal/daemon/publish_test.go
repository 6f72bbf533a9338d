package daemon

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The Go client and the daemon agree on idempotency keys and on publishing many messages.
func TestTheGoClientPublishesOnceAndMany(t *testing.T) {
	for _, lane := range []string{"handoff", "off"} {
		t.Run(lane, func(t *testing.T) {
			d := startLane(t, lane, nil)
			c, err := pubsub.New("http://" + d.PublicAddr())
			require.NoError(t, err)
			defer c.Close()
			once := []pubsub.PublishOption{pubsub.WithIdempotencyKey(`a "b", c\`), pubsub.WithClient("tab:7"), pubsub.WithKey("k")}
			first, err := c.PublishJSON(t.Context(), "a", "<1>", once...)
			require.NoError(t, err)
			again, err := c.PublishJSON(t.Context(), "a", "<1>", once...) // on the lane, if there is one
			require.NoError(t, err)
			require.Equal(t, first, again)
			_, err = c.PublishJSON(t.Context(), "a", "<2>", once...)
			require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeIdempotencyMismatch})

			results, err := c.PublishMany(t.Context(), []pubsub.Publication{
				{Topic: "a", Body: []byte(`"\u003c1\u003e"`), Options: once}, // as encoding/json writes it
				{Topic: "_a", Body: []byte("1")},
				{Topic: "a", Type: "text/html", Body: []byte("<p>")},
				{Topic: "a", Type: "image/png", Body: []byte{0, 255}},
			})
			require.NoError(t, err)
			require.Equal(t, first, *results[0].Published)
			require.ErrorIs(t, results[1].Problem, &wire.Problem{Code: wire.CodeReservedTopic})
			require.Equal(t, first.Position.Offset+2, results[3].Position.Offset)
			_, held := d.get("http://" + d.PublicAddr() + "/v1/topics/a/messages")
			require.Contains(t, held, `"id":"a \"b\", c\\","key":"k","data":"\u003c1\u003e"}`)
			require.Contains(t, held, `"type":"text/html","text":"<p>"}`)
			require.Contains(t, held, `"type":"image/png","base64":"AP8="}`)
			require.NotContains(t, held, "tab:7")
			require.Equal(t, 2.0, d.metric(`pubsubd_idempotency_results_total{outcome="repeated"}`))
			require.Equal(t, 1.0, d.metric("pubsubd_idempotency_keys"))
		})
	}
}
