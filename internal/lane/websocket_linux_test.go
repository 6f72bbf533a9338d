package lane_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The lane carries a WebSocket without a goroutine. The WebSocket works as it does off
// the lane.
func TestTheLaneCarriesWebSockets(t *testing.T) {
	k := newLane(t, lane.HandOff)
	s := k.Connect(wire.Start{Topic: "a"})
	require.Equal(t, uint64(0), s.Hello().Positions[0].Offset)
	k.WantOnLane(1)
	k.Publish("a", `1`)
	s.WantFrame("a1", "1")
	s.Send(wire.Command{Ref: new(uint64(1)), Publish: lanetest.Item("a", `{"n":2}`)})
	require.Equal(t, uint64(2), s.WantReply(1).Position.Offset)
	s.WantFrame("a2", `{"n":2}`)

	s.Send(wire.Command{Publish: lanetest.Item("a..b", `3`)})
	require.Equal(t, wire.CodeInvalidTopic, (<-s.Replies).Problem.Code, "without a ref only what is wrong is told")
	s.Send(wire.Command{Ping: true, Ref: new(uint64(4))})
	require.Nil(t, s.WantReply(4).Problem)

	s.Send(wire.Command{Ref: new(uint64(5)), Subscribe: []wire.Start{{Topic: "b"}}, Unsubscribe: []string{"a"}})
	require.Len(t, s.WantReply(5).Positions, 1)
	k.Publish("a", `4`)
	k.Publish("b", `5`)
	s.WantFrame("b1", "5")
	big := `"` + strings.Repeat("x", 60<<10) + `"`
	s.Send(wire.Command{Ref: new(uint64(6)), Publish: lanetest.Item("b", big)})
	s.WantFrame("b2", big) // before or after the reply
	s.WantReply(6)
	s.Close()
	k.WantNoLaneConnections()
}

// Sends many commands and receives many messages on one connection at once.
func TestCommandsAndFramesOnOneConnectionOfTheLane(t *testing.T) {
	k := newLane(t, lane.HandOff)
	s := k.Connect(wire.Start{Topic: "a"})
	s.Hello()
	const count = 3000
	go func() {
		for n := range uint64(count) {
			s.Send(wire.Command{Ref: new(n), Publish: lanetest.Item("a", fmt.Sprint(n))})
		}
	}()
	go func() {
		for range count {
			<-s.Replies
		}
	}()
	for n := range count {
		s.WantFrame(fmt.Sprintf("a%d", n+1), fmt.Sprint(n))
	}
	s.Close()
	k.WantNoLaneConnections()
}

// When a session ends, the daemon sends the reason and a WebSocket close frame.
func TestAWebSocketOnTheLaneEndsWithAReason(t *testing.T) {
	k := newLane(t, lane.HandOff)
	s := k.Connect(wire.Start{Topic: "a"})
	s.Hello()
	k.Parts.Sessions.BeginDrain(problem.New(wire.CodeDraining, "", "")).End(math.MaxInt)
	_, err := s.Next()
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeDraining})
	_, err = s.Next()
	closed := wsutil.ClosedError{}
	require.ErrorAs(t, err, &closed)
	require.EqualValues(t, 1001, closed.Code)
	s.Close()
	k.WantNoLaneConnections()
}

// A client that breaks the protocol gets an end frame and a close code, on the lane and
// off it.
func TestAWebSocketProtocolErrorHasACloseCode(t *testing.T) {
	for _, way := range []lane.Way{lane.Off, lane.HandOff} {
		k := newLane(t, way)
		for text, code := range map[string]int{`[1]`: 1008, "{": 1008, "\"\xff\"": 1007, strings.Repeat("\xff", 17<<10): 1007, strings.Repeat(" ", 1<<20+1): 1009} {
			s := k.Connect()
			s.Hello()
			require.NoError(t, wsutil.WriteClientText(s.Conn, []byte(text)))
			_, err := s.Next()
			require.ErrorAs(t, err, new(*wire.Problem), "%s %.10q", way, text)
			_, err = s.Next()
			closed := wsutil.ClosedError{}
			require.ErrorAs(t, err, &closed, "%s %.10q", way, text)
			require.EqualValues(t, code, closed.Code)
			s.Close()
		}
		k.WantNoLaneConnections()
	}
}

// A client continues a session by WebSocket and then by long polling.
func TestASessionMovesBetweenTransports(t *testing.T) {
	for _, way := range []lane.Way{lane.Off, lane.HandOff} {
		k := newLaneKit(t, way)
		id := k.OpenA()
		k.Publish("a", `1`)
		s := k.DialSocket("/v1/ws?session=" + id + "&ack=0")
		require.Equal(t, id, s.Hello().Session)
		s.WantFrame("a1", "1")
		k.Publish("a", `2`)
		s.WantFrame("a2", "2")
		polled := make(chan string)
		go func() {
			_, body := k.Get("GET", "/v1/sessions/"+id+"/poll?ack=2", "")
			polled <- body
		}()
		_, err := s.Next()
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodePollReplaced})
		k.Publish("a", `3`)
		require.Contains(t, <-polled, `"data":3`)
		s.Close()
	}
}

// The lane pings a client that has been silent for long. It closes the connection only if
// the client does not answer.
func TestTheLanePingsSilentWebSocketsOnce(t *testing.T) {
	k := newLaneKit(t, lane.HandOff)
	dial := func() (net.Conn, io.Reader) {
		d := ws.Dialer{NetDial: func(context.Context, string, string) (net.Conn, error) { return k.Dial() }}
		conn, buffered, _, err := d.Dial(context.Background(), "ws://pubsubd/v1/ws?topic=a")
		require.NoError(t, err)
		if buffered != nil {
			return conn, buffered
		}
		return conn, conn
	}
	alive, fromAlive := dial()
	dead, fromDead := dial()
	defer dead.Close()
	for _, r := range []io.Reader{fromAlive, fromDead} {
		require.Equal(t, ws.OpText, socketFrame(t, r).Header.OpCode, "hello")
	}
	k.WantOnLane(2)
	read := func() int { return int(k.Counted("pubsubd_network_bytes_total", "in")) }
	pings, before := 0, read()
	pong := ws.MustCompileFrame(ws.MaskFrame(ws.NewPongFrame(nil)))
	answer := func() { // if a ping has arrived
		require.NoError(t, alive.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		head, err := ws.ReadHeader(fromAlive)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		require.NoError(t, err)
		require.Equal(t, ws.OpPing, head.OpCode)
		_, err = alive.Write(pong)
		require.NoError(t, err)
		pings++
		k.Want(before+pings*len(pong), read, "bytes: the answer is heard")
	}
	asked := make(chan int, 1)
	go func() { // answers no ping
		n := 0
		for {
			head, err := ws.ReadHeader(fromDead)
			if err != nil || head.OpCode != ws.OpPing {
				asked <- n
				return
			}
			n++
		}
	}()
	silence, passed := k.Parts.Silence(), time.Duration(0)
	k.Want(1, func() int { // a connection that is not idle yet is pinged in a later round
		passed += silence / 2
		k.Later(passed)
		answer()
		if pings == 0 {
			return 2
		}
		return k.OnLane()
	}, "connections on the lane, of which one answers")
	require.Equal(t, 1, <-asked, "it is asked once")
	require.NoError(t, alive.Close())
}
