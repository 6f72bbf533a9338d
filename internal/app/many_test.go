package app

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A hookFunc decides by the data of a message.
type hookFunc func(data json.RawMessage) error

func (f hookFunc) Publish(_ context.Context, _ hook.Principal, m *wire.Message, _ time.Duration, _ func(*wire.PublishItem) error) error {
	return f(json.RawMessage(m.Data))
}

// A client retries a message that the server is too busy for. Later messages of the topic must not
// be published before the retry, so they get the same problem. Other topics continue.
func TestLaterMessagesOfATopicFollowARefusal(t *testing.T) {
	const body = `{"topic":"a","data":1}
{"topic":"a","data":2}
{"topic":"b","data":3}
{"topic":"a","data":4}
`
	for code, follows := range map[wire.Code]bool{wire.CodeHookFailed: true, wire.CodeLimited: true, wire.CodeForbidden: false} {
		a := newApp(t, func(c *Config) {
			c.Broker.Reload(broker.Config{HookTopics: []string{">"}}, time.Now())
			c.Hook = hookFunc(func(data json.RawMessage) error {
				if string(data) == "2" {
					return problem.New(code, "retry later", "busy").Retry(time.Second)
				}
				return nil
			})
		})
		results := publishMany(t, a, body)
		require.Len(t, results, 4)
		require.EqualValues(t, 1, results[0].Position.Offset)
		require.Equal(t, code, results[1].Problem.Code)
		require.Equal(t, "b", results[2].Position.Topic, code)
		if follows {
			require.Equal(t, results[1], results[3], code)
		} else {
			require.EqualValues(t, 2, results[3].Position.Offset, code)
		}
	}
}

// The log refuses a message while the hook is asked about the next one.
func TestLaterMessagesOfATopicFollowARefusalOfTheLog(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{})
	a.cfg.Broker.Reload(broker.Config{HookTopics: []string{"asked"}}, time.Now())
	asked := make(chan struct{})
	a.cfg.Hook = hookFunc(func(json.RawMessage) error {
		log.answer(t, errDisk) // of the first message
		close(asked)
		return nil
	})
	done := make(chan []wire.PublishResult)
	go func() {
		done <- publishMany(t, a, `{"topic":"a","data":1}
{"topic":"asked","data":2}
{"topic":"a","data":3}
`)
	}()
	<-asked
	log.answer(t, nil)
	results := <-done
	require.Equal(t, errDisk.Code, results[0].Problem.Code)
	require.Equal(t, "asked", results[1].Position.Topic)
	require.Equal(t, results[0], results[2])
	require.Empty(t, log.appended)
}
