package lane_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A doorman is an authorizer for the topic asked. The test sets its answers, and may hold
// them back.
type doorman struct {
	err   error
	asked chan hook.Subscribing
	let   chan struct{} // nil: answers at once
}

func (*doorman) Selects(topics []wire.Start) bool {
	for _, start := range topics {
		if start.Topic == "asked" {
			return true
		}
	}
	return false
}

func (d *doorman) Authorize(ctx context.Context, s hook.Subscribing) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.Principal.Address = nil // no test knows it
	d.asked <- s
	if d.let != nil {
		<-d.let
	}
	return d.err
}

func newDoorman(err error) *doorman {
	return &doorman{err: err, asked: make(chan hook.Subscribing, 100)}
}

// A refusal of the application, and its failure, reach the client on every transport.
// Nothing is subscribed.
func TestARefusedSubscriptionOnEveryTransport(t *testing.T) {
	for _, refused := range []*wire.Problem{
		problem.New(wire.CodeForbidden, "ask", "not your room"),
		problem.New(wire.CodeHookFailed, "retry", "no answer").Retry(time.Second),
	} {
		lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
			k := serveLane(t, way, lanetest.Settings{Authorize: newDoorman(refused)}, nil)
			session := k.OpenA()
			k.WantProblem(refused.Code, "POST", "/v1/sessions", `{"topics":["asked"]}`, lanetest.JSONType)
			k.WantProblem(refused.Code, "PATCH", "/v1/sessions/"+session, `{"add":["asked","b"]}`, lanetest.JSONType)
			k.WantProblem(refused.Code, "POST", "/v1/poll", `{"topics":["asked"]}`, lanetest.JSONType)
			k.WantProblem(refused.Code, "GET", "/v1/poll?topic=asked", "")
			status, answer := k.Refused("topic=asked", "")
			require.Contains(t, answer, string(refused.Code))
			require.Equal(t, refused.Code == wire.CodeHookFailed, status == http.StatusOK, "an EventSource retries after 200 only")
			_, err := k.TryDialSocket("/v1/ws?topic=asked")
			require.ErrorIs(t, err, refused)
			conn, err := net.Dial("tcp", k.OpenPort())
			require.NoError(t, err)
			defer conn.Close()
			c := &lanetest.RawTCP{TB: t, Conn: conn, Frames: wire.NewCBORDecoder(conn)}
			c.Send(wire.ConnectRequest{Topics: []wire.Start{{Topic: "asked"}}})
			end, err := c.Frames.Next()
			require.NoError(t, err)
			require.Equal(t, refused.Code, end.End.Code)
			for _, by := range []string{"WebSocket", "WebSocket in CBOR", "TCP"} {
				c := k.Commander(by, session)
				c.Send(wire.Command{Subscribe: []wire.Start{{Topic: "b"}, {Topic: "asked"}}, Ref: new(uint64(1))})
				reply := c.WantReply(1)
				require.NotNil(t, reply.Problem, by)
				require.Equal(t, refused.Code, reply.Problem.Code, by)
				c.Send(wire.Command{Unsubscribe: []string{"asked"}, Ref: new(uint64(2))})
				require.Nil(t, c.WantReply(2).Problem, "nobody is asked about leaving")
			}
			require.False(t, k.Parts.Broker.Has("asked"))
			require.False(t, k.Parts.Broker.Has("b"))
		})
	}
}

// While the application thinks about a poll on the lane, the event loop serves others. The
// poll stays on the lane.
func TestAPollThatWaitsForTheHookBlocksNoOther(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		d := newDoorman(nil)
		d.let = make(chan struct{})
		k := newLaneWith(t, way, lanetest.Settings{Authorize: d}, nil)
		k.Publish("asked", "1")
		c, other := k.CallOnLane(), k.CallOnLane()
		c.Send("GET /v1/poll?topic=asked@oldest&client=tab HTTP/1.1\r\nHost: h\r\n\r\n")
		require.Equal(t, hook.Subscribing{Client: "tab", Opens: true, Topics: []wire.Start{{Topic: "asked", From: wire.FromOldest}}}, <-d.asked)
		other.Send("GET /v1/poll?topic=lane.taken@oldest HTTP/1.1\r\nHost: h\r\n\r\n")
		require.Contains(t, other.WantAnswer(http.StatusOK), "lane.taken")
		d.let <- struct{}{}
		require.Contains(t, c.WantAnswer(http.StatusOK), `"data":1`)
		require.Empty(t, d.asked)
		require.Equal(t, 2.0, k.Counted("pubsubd_calls_total", "poll", "lane"))
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
	})
}

// While a subscribe command waits for the application, frames continue. The reply precedes
// the frames of the new topic.
func TestFramesContinueWhileASubscribeCommandWaits(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		d := newDoorman(nil)
		d.let = make(chan struct{})
		k := newLaneWith(t, way, lanetest.Settings{Authorize: d}, nil)
		k.Publish("asked", "1")
		s := k.Connect(wire.Start{Topic: "a"})
		defer s.Close()
		s.Hello()
		s.Send(wire.Command{Ref: new(uint64(1)), Subscribe: []wire.Start{{Topic: "asked", From: wire.FromOldest}}})
		require.False(t, (<-d.asked).Opens)
		k.Publish("a", "2")
		s.WantFrame("a1", "2")
		require.Empty(t, s.Replies)
		d.let <- struct{}{}
		s.WantFrame("asked1", "1")
		require.Len(t, s.Replies, 1, "it was received before")
		require.Len(t, s.WantReply(1).Positions, 1)
		require.Empty(t, d.asked)
	})
}
