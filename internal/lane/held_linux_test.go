package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// refusing is an API that holds refusals of publishes back for as long.
type refusing struct {
	everything
	hold time.Duration
}

func (r refusing) Publish(Publish) (wire.Published, error) {
	return wire.Published{}, &limit.Refusal{Problem: wire.NewProblem(wire.CodeLimited, "come later", "too often"), Hold: r.hold}
}

// newRefused returns a connection on which a publish was refused, and its client's side.
func newRefused(t *testing.T, hold time.Duration) (*conn, int) {
	t.Helper()
	c, _, client := newTended(t)
	l := New(Config{API: refusing{hold: hold}, Metrics: metrics.New("test"), Origins: cors.New(nil), Idle: time.Minute, WriteTimeout: time.Minute})
	c.lane, c.parser.lane = l, l
	ask(t, client, 1)
	c.happened(heardArrival)
	return c, client
}

// What is held back is listed until it is told, and no longer: the list is gone through
// with each Tick, and would keep connections that are gone.
func TestWhatWasToldIsHeldNoMore(t *testing.T) {
	c, client := newRefused(t, time.Hour)
	require.Len(t, c.lane.held, 1)
	require.Nil(t, c.buf, "as long as nothing comes it needs none")
	until := c.lane.held[c]
	c.lane.Tick(until.Add(-time.Millisecond))
	c.lane.running.Wait()
	require.Len(t, c.lane.held, 1)
	require.Empty(t, appendAll(t, nil, client))

	c.lane.Tick(until)
	c.lane.running.Wait()
	require.Empty(t, c.lane.held)
	require.Contains(t, string(appendAll(t, nil, client)), "HTTP/1.1 429 ")

	ask(t, client, 1)
	c.happened(heardArrival)
	require.Len(t, c.lane.held, 1, "the next one has a time of its own")
	require.Greater(t, time.Until(c.lane.held[c]), 59*time.Minute)
}

// Who leaves meanwhile is not kept.
func TestWhoLeftIsHeldNoMore(t *testing.T) {
	c, _ := newRefused(t, time.Hour)
	require.True(t, c.lane.list(c))
	require.Len(t, c.lane.held, 1)
	c.lane.forget(c)
	require.Empty(t, c.lane.held)
}

func TestARefusalThatIsNotHeldIsNotListed(t *testing.T) {
	c, client := newRefused(t, 0)
	require.Empty(t, c.lane.held)
	require.Contains(t, string(appendAll(t, nil, client)), "HTTP/1.1 429 ")
}
