package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A back end forbids ann one topic of her pattern. Her client learns it with the reason, and goes on
// with the others, over a reconnect, too. Once the topic is permitted again, it continues where it
// was: nothing comes twice.
func TestTheGoClientGoesOnWithAPatternOfWhichATopicIsForbidden(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "keys")
	secret, backend, err := auth.NewAPIKey("backend", []byte(`[{"topics":[">"],"allow":["manage","publish"]}]`), time.Now(), time.Time{})
	require.NoError(t, err)
	require.NoError(t, auth.EditAPIKeys(file, func(keys []auth.APIKey) ([]auth.APIKey, error) { return append(keys, backend), nil }))
	var names []string
	for way := range ways {
		names = append(names, way)
	}
	keys := keysOf(t, file, names...)
	d := start(t, func(c *config.Config) {
		c.Auth.APIKeys, c.Auth.Revocations, c.Listen.TCP = file, filepath.Join(folder, "revocations"), "127.0.0.1:0"
	})
	publisher, err := pubsub.New("http://"+d.PublicAddr(), pubsub.WithToken(secret))
	require.NoError(t, err)
	defer publisher.Close()
	for i, way := range names {
		t.Run(way, func(t *testing.T) {
			topic := func(name string) string { return fmt.Sprintf("chat%d.%s", i, name) }
			manage := func(what string) {
				t.Helper()
				status, text := d.ask("/v1/subjects", secret, fmt.Sprintf(`{"subject":%q,%s}`, way, what))
				require.Equal(t, 200, status, text)
			}
			client, err := pubsub.New("http://"+d.PublicAddr(), pubsub.WithTCPAddr(d.TCPAddr(), nil), pubsub.WithToken(keys[way]), pubsub.WithMaxBackoff(50*time.Millisecond))
			require.NoError(t, err)
			defer client.Close()
			s, err := client.Subscribe(t.Context(), []wire.Start{pubsub.FromNow(topic("*"))}, append(ways[way], pubsub.WithRetryNotify(func(err error, _ time.Duration) { t.Log(err) }))...)
			require.NoError(t, err)
			defer s.Close()
			publish := func(name string, data int) {
				t.Helper()
				_, err := publisher.PublishJSON(t.Context(), topic(name), data)
				require.NoError(t, err)
			}
			next := func() pubsub.Item {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), surely)
				defer cancel()
				item, err := s.Next(ctx)
				require.NoError(t, err)
				return item
			}
			want := func(name string, data int) {
				t.Helper()
				item := next()
				require.Nil(t, item.Gap)
				require.Equal(t, topic(name), item.Message.Position.Topic)
				require.Equal(t, fmt.Sprint(data), string(item.Message.Data))
			}
			publish("42", 1)
			want("42", 1)
			manage(fmt.Sprintf(`"forbid":[%q],"until_ms":%d,"reason":"spam"`, topic("42"), time.Now().Add(time.Hour).UnixMilli()))
			gap := next().Gap
			require.NotNil(t, gap)
			require.Equal(t, topic("42"), gap.Topic)
			require.Equal(t, wire.GapForbidden, gap.Reason)
			require.Equal(t, "spam", gap.Detail)
			publish("42", 2)
			publish("1", 3)
			want("1", 3)
			manage(`"end":true`)
			publish("42", 4)
			publish("1", 5)
			want("1", 5)
			manage(`"forbid":[]`)
			manage(`"end":true`)
			want("42", 2)
			want("42", 4)
			publish("42", 6)
			want("42", 6)
		})
	}
}
