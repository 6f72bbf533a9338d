package pubsub

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTransportsAndModes(t *testing.T) {
	for _, c := range []struct {
		said SubscribeOption
		also SubscribeOption
		is   Transport
		mode Mode // of the first opening
		says string
	}{
		{is: Auto, mode: Stream},
		{said: WithMode(Single), is: LongPoll, mode: Single},
		{said: WithMode(Stream), is: HTTPStream, mode: Stream},
		{said: Stateless(), is: LongPoll, mode: Batch},
		{said: Stateless(), also: WithMode(Stream), is: HTTPStream, mode: Stream},
		{said: Stateless(), also: WithTransport(Auto), is: Auto, mode: Stream},
		{said: WithTransport(LongPoll), is: LongPoll, mode: Batch},
		{said: WithTransport(LongPoll), also: WithMode(Multiple), is: LongPoll, mode: Multiple},
		{said: WithTransport(HTTPStream), also: WithMode(Stream), is: HTTPStream, mode: Stream},
		{said: WithTransport(SSE), is: SSE, mode: Stream},
		{said: WithTransport(Auto), also: WithMode(Single), is: Auto, mode: Stream},
		{said: WithTransport(Auto), also: WithMode(Stream), says: "omit one of them"},
		{said: WithTransport(LongPoll), also: WithMode(Stream), says: "omit one of them"},
		{said: WithTransport(HTTPStream), also: WithMode(Batch), says: `"stream" has no modes`},
		{said: WithTransport(WebSocket), also: WithMode(Stream), says: `"websocket" has no modes`},
		{said: WithTransport("pigeon"), says: `unknown transport "pigeon"`},
	} {
		var o subscribeOptions
		for _, option := range []SubscribeOption{c.said, c.also} {
			if option != nil {
				option(&o)
			}
		}
		err := o.resolve()
		if c.says != "" {
			require.ErrorContains(t, err, c.says)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.is, o.transport)
		require.Equal(t, c.mode, o.by(o.ladder()[0]).mode)
	}
}

// What is said of the mode counts when Auto comes to long polls.
func TestAutoPollsInTheModeThatWasSaid(t *testing.T) {
	o := subscribeOptions{transport: Auto, mode: Single}
	require.NoError(t, o.resolve())
	ladder := o.ladder()
	require.Equal(t, LongPoll, ladder[len(ladder)-1])
	require.Equal(t, Single, o.by(LongPoll).mode)
}
