package lane_test

import (
	"bufio"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A client may send commands before it receives hello. The daemon still sends hello
// first.
func TestHelloPrecedesRepliesToEarlyCommands(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		at := k.OpenPort()
		for range 50 {
			conn, err := net.Dial("tcp", at)
			require.NoError(t, err)
			_, err = conn.Write(lanetest.AsCBOR(`{"topics":["a"]}`, `{"subscribe":["b"],"ref":1}`, `{"ping":true,"ref":2}`))
			require.NoError(t, err)
			frames := wire.NewCBORDecoder(conn)
			c, err := frames.Next()
			require.NoError(t, err)
			require.NotNil(t, c.Hello)
			require.Len(t, c.Hello.Positions, 1)
			for ref := range uint64(2) {
				c, err = frames.Next()
				require.NoError(t, err)
				require.NotNil(t, c.Reply)
				require.Equal(t, ref+1, *c.Reply.Ref)
			}
			conn.Close()
		}
	})
}

// So it does if so many frames follow hello that a loop would not encode them.
func TestHelloWithALargeHistoryPrecedesReplies(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		at := k.OpenPort()
		for n := range 20 {
			k.Tell(4*n+1, 4*n+4, lanetest.Large-100) // nobody has encoded them
			conn, err := net.Dial("tcp", at)
			require.NoError(t, err)
			_, err = conn.Write(lanetest.AsCBOR(`{"topics":["a@oldest"]}`, `{"ping":true,"ref":1}`))
			require.NoError(t, err)
			c, err := wire.NewCBORDecoder(conn).Next()
			require.NoError(t, err)
			require.NotNil(t, c.Hello)
			conn.Close()
		}
	})
}

// After the end frame, a client has a moment to close its connection. Then the daemon
// closes it, even if the client keeps sending.
func TestAnEndedConnectionIsClosedWhileItsClientSends(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		conn, err := net.Dial("tcp", k.OpenPort())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write(lanetest.AsCBOR(`{"topics":["a"]}`))
		require.NoError(t, err)
		frames := wire.NewCBORDecoder(conn)
		c, err := frames.Next()
		require.NoError(t, err)
		require.NotNil(t, c.Hello)
		k.Parts.Sessions.BeginDrain(lanetest.GoingAway()).End(math.MaxInt)
		for c.End == nil {
			c, err = frames.Next()
			require.NoError(t, err)
		}
		begun := time.Now()
		for now := begun; err == nil; now = now.Add(time.Second) {
			require.Less(t, time.Since(begun), lanetest.Surely, "it is still there")
			k.Lane.Tick(now)
			time.Sleep(100 * time.Millisecond)
			_, err = conn.Write(lanetest.AsCBOR(`null`))
		}
	})
}

// A client with a backlog of frames still gets replies to its commands.
func TestCommandsAreAnsweredDuringABacklog(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		const messages = 400
		k := newLaneWith(t, way, lanetest.Settings{Broker: broker.Config{HistoryMessages: messages, HistoryBytes: 64 << 20}}, lanetest.Small)
		k.Tell(1, messages, lanetest.Large-100)
		s := k.Connect(wire.Start{Topic: "a", From: wire.FromOldest})
		s.Hello()
		s.Send(wire.Command{Ref: new(uint64(1)), Ping: true})
		pace := time.NewTicker(50 * time.Millisecond) // gives the daemon time to read the command
		defer pace.Stop()
		for range messages / 2 {
			select {
			case reply := <-s.Replies:
				require.Equal(t, uint64(1), *reply.Ref)
				s.Close()
				return
			case <-pace.C:
				<-s.Frames
			}
		}
		t.Fatal("half of it was read before the reply")
	})
}

// The daemon may refuse an upgrade after net/http has handed over the connection. It then
// closes the connection.
func TestAnUpgradeThatIsRefusedEndsItsConnection(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		for _, fields := range []string{
			"Host:\r\nConnection: Upgrade\r\n",
		} {
			conn, err := k.Dial()
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(lanetest.Surely)))
			_, err = io.WriteString(conn, "GET /v1/ws HTTP/1.1\r\n"+fields+
				"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "+strings.Repeat("x", 24)+"\r\n\r\n")
			require.NoError(t, err)
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			require.NoError(t, err, fields)
			require.NotEqual(t, http.StatusSwitchingProtocols, resp.StatusCode, fields)
			resp.Body.Close()
			_, err = io.Copy(io.Discard, r)
			require.NoError(t, err, fields)
			conn.Close()
		}
	})
}

// A malformed Sec-WebSocket-Extensions offer is refused with invalid_request.
func TestAnInvalidExtensionOfferIsTheClientsFault(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		c := k.Call()
		for _, offer := range []string{"permessage-deflate; server_max_window_bits=99", ";;=", "permessage-deflate; client_max_window_bits=x"} {
			c.Send("GET /v1/ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: " + offer +
				"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + strings.Repeat("x", 24) + "\r\n\r\n")
			require.Contains(t, c.WantAnswer(http.StatusBadRequest), wire.CodeInvalidRequest, offer)
		}
		require.Zero(t, k.Subscriptions(), "nothing was opened")
	})
}

// A header may have several lines.
func TestUpgradeHeadersMayHaveSeveralLines(t *testing.T) {
	k := newLaneKit(t, lane.HandOff)
	conn, err := k.Dial()
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /v1/ws HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: h2c, websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "+strings.Repeat("x", 24)+"\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
}

// A browser fails a WebSocket for which it offered subprotocols and none was selected, or
// one that it did not offer. So the daemon selects its own if it is offered, and no other.
func TestTheSubprotocolIsSelectedIfItIsOffered(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		for offer, selected := range map[string]bool{
			"":                                   false,
			"Sec-WebSocket-Protocol: pubsubd.v1": true,
			"sec-websocket-protocol:pubsubd.v1":  true,
			"Sec-WebSocket-Protocol: pubsubd.v1, bearer.c2VjcmV0":                                   true,
			"Sec-WebSocket-Protocol: bearer.c2VjcmV0,pubsubd.v1":                                    true,
			"Sec-WebSocket-Protocol: bearer.c2VjcmV0\r\nSec-WebSocket-Protocol: pubsubd.v1":         true,
			"Sec-WebSocket-Protocol: pubsubd.v1, pubsubd.v1":                                        true,
			"Sec-WebSocket-Protocol: bearer.c2VjcmV0":                                               false,
			"Sec-WebSocket-Protocol: graphql-ws, pubsubd.v2, PubSubD.v1, xpubsubd.v1, pubsubd.v1.1": false,
			"Sec-WebSocket-Protocol: ,, =\"pubsubd.v1\"":                                            false,
		} {
			c := k.Call()
			c.Send("GET /v1/ws?topic=a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
				"Sec-WebSocket-Key: " + strings.Repeat("x", 24) + "\r\n" + strings.TrimPrefix(offer+"\r\n", "\r\n") + "\r\n")
			answer, err := http.ReadResponse(c.Answers, nil)
			require.NoError(t, err)
			answer.Body.Close()
			require.Equal(t, http.StatusSwitchingProtocols, answer.StatusCode, offer)
			want := []string(nil)
			if selected {
				want = []string{"pubsubd.v1"}
			}
			require.Equal(t, want, answer.Header.Values("Sec-WebSocket-Protocol"), offer)
			require.Equal(t, ws.OpText, socketFrame(t, c.Answers).Header.OpCode, "hello")
			require.NoError(t, c.Conn.Close())
		}
		k.WantNoLaneConnections()
	})
}
