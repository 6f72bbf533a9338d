package app

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The disk hangs, and no publish to the log is answered. Messages of an ephemeral topic are published
// at once, alone and among others.
func TestEphemeralPublishesDoNotWaitForTheLog(t *testing.T) {
	m := metrics.New("test")
	log := &waitingLog{appended: make(chan appended, 10)}
	rules := []broker.Rule{{Name: "typing", Pattern: "*.typing", Ephemeral: true}}
	log.broker = broker.NewWithLog(broker.Config{Rules: rules}, m, time.Now(), func(*broker.Broker) broker.Log { return log })
	a := newApp(t, func(c *Config) { c.Broker, c.Metrics, c.Limiter = log.broker, m, limit.New(limit.Config{}, m) })

	p := publishing(`"k"`)
	p.Topic = "a.typing"
	begun, message, err := a.begin(t.Context(), Caller{}, p)
	require.NoError(t, err)
	first, over, err := begun.Send(message)
	require.NoError(t, err)
	require.True(t, over, "it waits for nothing")
	require.EqualValues(t, 1, first.Position.Offset)
	again, err := a.post(t.Context(), Caller{}, p)
	require.NoError(t, err)
	require.Equal(t, first, again, "its key has the result")
	p.Payload = []byte("2")
	_, err = a.post(t.Context(), Caller{}, p)
	require.ErrorIs(t, err, problem.New(wire.CodeIdempotencyMismatch, "", ""))

	answered := make(chan []byte)
	go func() {
		body := `[{"topic":"a","data":1},{"topic":"a.typing","data":1},{"topic":"b.typing","data":1}]`
		json := request.Head{ContentType: request.HeaderOf([]string{"application/json"})}
		answer, err := a.publishMany(t.Context(), Caller{}, json, func(int) ([]byte, error) { return []byte(body), nil })
		if err != nil {
			t.Error(err)
		}
		answered <- answer
	}()
	log.answer(t, errDisk) // the only entry that came to it
	var results []wire.PublishResult
	require.NoError(t, json.Unmarshal(<-answered, &results))
	require.Equal(t, wire.CodeOverloaded, results[0].Problem.Code)
	require.EqualValues(t, 2, results[1].Position.Offset)
	require.EqualValues(t, 1, results[2].Position.Offset)
	require.NoError(t, a.DeleteTopic(t.Context(), Caller{}, "a.typing", func(wire.TopicState) error { return nil }))
	require.Empty(t, log.appended)
}
