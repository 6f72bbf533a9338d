package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A reload changes only how long the lane waits for a client to read.
func TestReloadChangesOnlyTheWriteTimeout(t *testing.T) {
	m := metrics.New("test")
	polls := transport.New(transport.Config{}, wire.Limits{}, memory.New(memory.DefaultBudget, nil, m), m, nil)
	l := New(Config{Polls: polls, Metrics: m, Origins: cors.New(nil, zap.NewNop()), Hosts: everyHost()})
	defer l.Close()
	for _, timeout := range []time.Duration{30 * time.Second, 7 * time.Second} {
		polls.Reload(transport.Config{WriteTimeout: timeout}, wire.Limits{})
		for what, want := range map[waitKind]time.Duration{
			waitTurn: Idle, waitFrame: Idle, waitRequest: Idle, waitRest: restTimeout, waitSpace: timeout,
		} {
			c := &conn{output: output{lane: l}}
			c.await(what)
			require.EqualValues(t, want/time.Second, c.due)
		}
	}
}
