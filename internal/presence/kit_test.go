package presence

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/leaktest"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// A kit is a broker, and a registry of sessions with their members, on fake time.
type kit struct {
	*testing.T
	broker   *broker.Broker
	registry *session.Registry
	members  *Members
	metrics  *metrics.Metrics
	entered  atomic.Int64 // sessions that enter has opened
}

// story runs a test on fake time.
func story(t *testing.T, bc broker.Config, sc session.Config, tell func(k *kit)) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New("test")
		b := broker.New(bc, m, time.Now())
		members := New(b, m)
		sc.Presence = members
		k := &kit{T: t, broker: b, registry: session.NewRegistry(sc, b, m), members: members, metrics: m}
		tell(k)
		k.broker.Close()
	})
}

func (k *kit) publish(topic string) {
	k.Helper()
	_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
	require.NoError(k, err)
}

func (k *kit) starts(texts ...string) []wire.Start {
	k.Helper()
	starts := make([]wire.Start, len(texts))
	for i, text := range texts {
		var err error
		starts[i], err = wire.ParseStart(text)
		require.NoError(k, err)
	}
	return starts
}

var everything = frame.Limit{Frames: 1000, Bytes: 1 << 20}

// take takes the frames that a session has, in a poll that then waits for ever.
func (k *kit) take(s *session.Session) {
	k.Helper()
	_, err := k.attach(s).Take(context.Background(), everything, time.Second)
	require.NoError(k, err)
}
