//go:build linux

package httpapi

import (
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A message may arrive after the lane begins to drain and before the session ends. The
// poll gets it, and its connection does not delay the drain.
func TestAnAnswerDuringTheDrainEndsItsConnection(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		for range 20 { // the poll may be parked again before or after the message arrives
			k := newLaneKit(t, way)
			c := k.call()
			c.send(polling(k.openA(), 0))
			k.wantParked(1)
			drained := k.api.Lane.Drain()
			k.tell(1, 1, 10)
			c.wantMessages(1, 1)
			select {
			case <-drained:
			case <-time.After(surely):
				require.Fail(t, "the connection holds the drain up")
			}
			c.wantClosed()
		}
	})
}

// A client that gets draining reconnects, perhaps to another daemon. Until then its
// connection works as before.
func TestARefusalDuringADrainClosesTheConnection(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Channel, lane.Off} {
		t.Run(string(way), func(t *testing.T) {
			k := newLaneKit(t, way)
			position := k.open(`{"topics":["a"]}`).Positions[0].String()
			session := k.openA()
			waits, comes, stateless, between := k.call(), k.call(), k.call(), k.call()
			between.send(publishing("b", "1"))
			between.wantPublished("b")
			waits.send(polling(session, 0))
			k.wantParked(1)

			drain := k.cfg.Sessions.BeginDrain(goingAway())
			k.tell(1, 1, 10)
			waits.wantMessages(1, 1)
			waits.send(polling(session, 1))
			k.wantParked(1)
			between.send(publishing("b", "1"))
			between.wantToldToLeave()
			stateless.send("GET /v1/poll?topic=" + position + " HTTP/1.1\r\nHost: h\r\n\r\n")
			stateless.wantToldToLeave()
			comes.send("POST /v1/sessions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
			comes.wantToldToLeave()

			k.tell(2, 2, 10)
			waits.wantMessages(2, 2)
			waits.send(polling(session, 2))
			k.wantParked(1)
			drain.End(drain.Left())
			waits.wantToldToLeave()
		})
	}
}

// wantToldToLeave requires an answer with the problem draining, after which the daemon
// closes the connection.
func (c *caller) wantToldToLeave() {
	c.Helper()
	resp := c.answer()
	defer resp.Body.Close()
	var why wire.Problem
	require.NoError(c, json.NewDecoder(resp.Body).Decode(&why))
	require.Equal(c, wire.CodeDraining, why.Code)
	require.True(c, resp.Close, "Connection: close")
	c.wantClosed()
}

// Parked stateless polls and streams get the problem draining when their turn comes.
func TestADrainEndsStreamsAndStatelessPolls(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		stream, stateless := k.call(), k.call()
		opened := k.open(`{"topics":["a"]}`)
		stream.send(polling(opened.Session, 0, streaming))
		frames := stream.wantStream()
		stateless.send("GET /v1/poll?topic=" + opened.Positions[0].String() + " HTTP/1.1\r\nHost: h\r\n\r\n")
		k.wantParked(2)
		drain := k.cfg.Sessions.BeginDrain(goingAway())
		require.Equal(t, 2, drain.Left())
		drain.End(2)
		stateless.wantToldToLeave()
		end, err := frames.Next()
		require.NoError(t, err)
		require.Equal(t, wire.CodeDraining, end.End.Code)
		require.Len(t, end.End.Positions, 1)
		_, err = frames.Next()
		require.ErrorIs(t, err, io.EOF, "the answer is whole")
		stream.wantClosed()
	})
}
