package app

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A waitingLog has one partition. An entry is done when a test calls the function that it
// receives, as if a disk or a leader answered.
type waitingLog struct{ appended chan func([]broker.Result) }

func (l waitingLog) Append(_ []broker.Entry, done func([]broker.Result)) { l.appended <- done }

func (waitingLog) Feed(context.Context, func(broker.Entry) error) error { return nil }
func (waitingLog) Partitions() int                                      { return 1 }
func (waitingLog) Partition(string) int                                 { return 0 }
func (waitingLog) Applied(wire.Position) bool                           { return false }

// An event loop publishes with NoWait. It must not block on a log that does not answer.
func TestAPublishThatMustNotWaitDoesNotWaitForTheLog(t *testing.T) {
	log := waitingLog{make(chan func([]broker.Result), 1)}
	a := newApp(t, func(c *Config) {
		c.Broker = broker.NewWithLog(broker.Config{}, metrics.New("test"), time.Now(), func(*broker.Broker) broker.Log { return log })
	})
	p := Publish{Topic: "a", ContentType: Header{"application/json", 1}, Payload: []byte("1")}
	_, err := a.Publish(NoWait, Caller{}, p)
	require.ErrorIs(t, err, ErrWouldWait)
	require.Empty(t, log.appended, "it has spent nothing")

	published := make(chan error)
	go func() {
		_, err := a.Publish(context.Background(), Caller{}, p)
		published <- err
	}()
	(<-log.appended)([]broker.Result{{}})
	require.NoError(t, <-published)
}
