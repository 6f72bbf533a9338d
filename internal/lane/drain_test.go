//go:build linux

package lane_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A message may arrive after the lane begins to drain and before the session ends. The
// poll gets it, and its connection does not delay the drain.
func TestAnAnswerDuringTheDrainEndsItsConnection(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		for range 20 { // the poll may be parked again before or after the message arrives
			k := newLane(t, way)
			c := k.Call()
			c.Send(lanetest.Polling(k.OpenA(), 0))
			k.WantParked(1)
			drained := k.Lane.Drain()
			k.Tell(1, 1, 10)
			c.WantMessages(1, 1)
			select {
			case <-drained:
			case <-time.After(lanetest.Surely):
				require.Fail(t, "the connection holds the drain up")
			}
			c.WantClosed()
		}
	})
}

// A client that gets draining reconnects, perhaps to another daemon. Until then its
// connection works as before.
func TestARefusalDuringADrainClosesTheConnection(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Channel, lane.Off} {
		t.Run(string(way), func(t *testing.T) {
			k := newLaneKit(t, way)
			position := k.Open(`{"topics":["a"]}`).Positions[0].String()
			session := k.OpenA()
			waits, comes, stateless, between := k.Call(), k.Call(), k.Call(), k.Call()
			between.Send(lanetest.Publishing("b", "1"))
			between.WantPublished("b")
			waits.Send(lanetest.Polling(session, 0))
			k.WantParked(1)

			drain := k.Parts.Sessions.BeginDrain(lanetest.GoingAway())
			k.Tell(1, 1, 10)
			waits.WantMessages(1, 1)
			waits.Send(lanetest.Polling(session, 1))
			k.WantParked(1)
			between.Send(lanetest.Publishing("b", "1"))
			between.WantToldToLeave()
			stateless.Send("GET /v1/poll?topic=" + position + " HTTP/1.1\r\nHost: h\r\n\r\n")
			stateless.WantToldToLeave()
			comes.Send("POST /v1/sessions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
			comes.WantToldToLeave()

			k.Tell(2, 2, 10)
			waits.WantMessages(2, 2)
			waits.Send(lanetest.Polling(session, 2))
			k.WantParked(1)
			drain.End(drain.Left())
			waits.WantToldToLeave()
		})
	}
}

// Parked stateless polls and streams get the problem draining when their turn comes.
func TestADrainEndsStreamsAndStatelessPolls(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		stream, stateless := k.Call(), k.Call()
		opened := k.Open(`{"topics":["a"]}`)
		stream.Send(lanetest.Polling(opened.Session, 0, lanetest.Streaming))
		frames := stream.WantStream()
		stateless.Send("GET /v1/poll?topic=" + opened.Positions[0].String() + " HTTP/1.1\r\nHost: h\r\n\r\n")
		k.WantParked(2)
		drain := k.Parts.Sessions.BeginDrain(lanetest.GoingAway())
		require.Equal(t, 2, drain.Left())
		drain.End(2)
		stateless.WantToldToLeave()
		end, err := frames.Next()
		require.NoError(t, err)
		require.Equal(t, wire.CodeDraining, end.End.Code)
		require.Len(t, end.End.Positions, 1)
		_, err = frames.Next()
		require.ErrorIs(t, err, io.EOF, "the answer is whole")
		stream.WantClosed()
	})
}
