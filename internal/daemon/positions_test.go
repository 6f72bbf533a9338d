package daemon

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/store"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// SECURITY.md, "Positions show how much others get": with the log, offsets count the messages of
// all topics, and otherwise those of one topic.
func TestOffsetsCountTheMessagesOfAllTopicsOnlyWithTheLog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*config.Config)
		counts uint64
	}{
		"no log":       {func(*config.Config) {}, 1},
		"kept by stop": {func(c *config.Config) { c.Store.Dir, c.Store.Sync = t.TempDir(), store.SyncStop }, 1},
		"the log":      {func(c *config.Config) { c.Store.Dir = t.TempDir() }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t, c.change)
			publish := func(topic string) uint64 {
				status, text := d.ask("/v1/topics/"+topic+"/messages", "", "1")
				require.Equal(t, 200, status, text)
				var published wire.Published
				require.NoError(t, json.Unmarshal([]byte(text), &published))
				return published.Position.Offset
			}
			before := publish("mine")
			for range 3 {
				publish("others")
			}
			require.Equal(t, c.counts, publish("mine")-before)
		})
	}
}
