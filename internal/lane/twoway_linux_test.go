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
	"github.com/gobwas/ws/wsflate"
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
				"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
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

// A header that no grammar permits is refused with invalid_request (RFC 6455, section 9.1).
func TestOffersThatCannotBeReadAreTheClientsFault(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		c := k.Call()
		for _, offer := range []string{
			";;=", "permessage-deflate\r\nSec-WebSocket-Extensions: (", "a=1", "permessage-deflate;", "x permessage-deflate", "permessage-deflate; client_max_window_bits=",
			"permessage-deflate; client_max_window_bits=\"\"", "permessage-deflate; server_max_window_bits=\"15", "permessage-deflate; client_max_window_bits=9 x",
			"x; y=\"1,2\", permessage-deflate",
		} {
			c.Send(upgradeWith("Sec-WebSocket-Extensions: " + offer))
			require.Contains(t, c.WantAnswer(http.StatusBadRequest), wire.CodeInvalidRequest, offer)
		}
		require.Zero(t, k.Subscriptions(), "nothing was opened")
	})
}

// upgradeWith returns a request for a WebSocket with more header lines.
func upgradeWith(lines string) string {
	return "GET /v1/ws?topic=a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + lines + "\r\n\r\n"
}

// The daemon declines an offer that it cannot accept, and tries the next one. Without any, the
// WebSocket opens without compression (RFC 7692, section 7.1).
func TestOffersOfCompressionAreAcceptedOrDeclined(t *testing.T) {
	const always = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
	const whole = always + "; server_max_window_bits=15"
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		for offer, accepted := range map[string]string{
			"permessage-deflate":                         always,
			"permessage-deflate; client_max_window_bits": always,
			"permessage-deflate; client_max_window_bits=8; server_no_context_takeover; client_no_context_takeover":                        always,
			"permessage-deflate; client_max_window_bits=\"15\"":                                                                           always,
			"permessage-deflate; server_max_window_bits=15":                                                                               whole,
			"permessage-deflate;server_max_window_bits=\"15\";client_max_window_bits":                                                     whole,
			"x-webkit-deflate-frame, permessage-deflate":                                                                                  always,
			"permessage-deflate; server_max_window_bits=10, permessage-deflate; client_max_window_bits":                                   always,
			"permessage-deflate; server_max_window_bits=10\r\nSec-WebSocket-Extensions: permessage-deflate":                               always,
			"permessage-deflate; server_max_window_bits=99, permessage-deflate; server_max_window_bits=15, permessage-deflate":            whole,
			"permessage-deflate; unknown, permessage-deflate; server_no_context_takeover; server_no_context_takeover, permessage-deflate": always,

			" , permessage-deflate\t;\tserver_max_window_bits = \"1\\5\" ,": whole,

			"":                       "",
			"x-webkit-deflate-frame": "",
			"permessage-deflate; client_max_window_bits=\"8\\5\"":                      "",
			"permessage-deflate; unknown":                                              "",
			"Permessage-Deflate-2":                                                     "",
			"permessage-deflate; server_max_window_bits":                               "",
			"permessage-deflate; server_max_window_bits=14":                            "",
			"permessage-deflate; server_max_window_bits=015":                           "",
			"permessage-deflate; server_max_window_bits=15; server_max_window_bits=15": "",
			"permessage-deflate; server_no_context_takeover=1":                         "",
			"permessage-deflate; client_no_context_takeover=\"x\"":                     "",
			"permessage-deflate; client_max_window_bits=7":                             "",
			"permessage-deflate; client_max_window_bits=16":                            "",
			"permessage-deflate; client_max_window_bits=08":                            "",
			"permessage-deflate; client_max_window_bits=x":                             "",
			"permessage-deflate; client_max_window_bits; client_max_window_bits=9":     "",
		} {
			c := k.Call()
			c.Send(upgradeWith("Sec-WebSocket-Extensions: " + offer))
			answer, err := http.ReadResponse(c.Answers, nil)
			require.NoError(t, err)
			answer.Body.Close()
			require.Equal(t, http.StatusSwitchingProtocols, answer.StatusCode, offer)
			require.Equal(t, accepted, answer.Header.Get("Sec-WebSocket-Extensions"), offer)
			require.Equal(t, ws.OpText, socketFrame(t, c.Answers).Header.OpCode, "hello")

			command, err := wsflate.CompressFrame(ws.NewTextFrame([]byte(`{"ping":true,"ref":1}`)))
			require.NoError(t, err)
			require.NoError(t, ws.WriteFrame(c.Conn, ws.MaskFrameInPlace(command)))
			reply := socketFrame(t, c.Answers)
			require.Equal(t, accepted != "", strings.Contains(string(reply.Payload), `{"reply":{"ref":1}}`), "%s: %s", offer, reply.Payload)
			require.NoError(t, c.Conn.Close())
		}
		k.WantNoLaneConnections()
	})
}

// An upgrade has version 13, which a refusal names (RFC 6455, section 4.4), and one key of 16
// bytes (sections 4.2.1 and 11.3.1).
func TestAnUpgradeHasVersion13AndOneKey(t *testing.T) {
	const key, version = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", "Sec-WebSocket-Version: 13\r\n"
	k := newLaneKit(t, lane.HandOff)
	c := k.Call()
	for fields, names := range map[string]bool{ // whether the answer names the version
		key:                                      true,
		key + "Sec-WebSocket-Version: 8\r\n":     true,
		key + "Sec-WebSocket-Version: 13, 8\r\n": true,
		key + version + version:                  true,
		version:                                  false,
		version + key + key:                      false,
		version + "Sec-WebSocket-Key: \r\n":      false,
		version + "Sec-WebSocket-Key: " + strings.Repeat("A", 24) + "\r\n": false, // 18 bytes
		version + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAA\r\n":            false, // 15 bytes
		version + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA\r\n":          false,
		version + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAA-==\r\n":        false,
		version + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==, AAAA\r\n":  false,
	} {
		c.Send("GET /v1/ws?topic=a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + fields + "\r\n")
		answer := c.Answer()
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		require.NoError(t, err)
		require.Equal(t, http.StatusBadRequest, answer.StatusCode, fields)
		require.Contains(t, string(body), wire.CodeInvalidRequest)
		want := []string(nil)
		if names {
			want = []string{"13"}
		}
		require.Equal(t, want, answer.Header.Values("Sec-WebSocket-Version"), fields)
	}
	c.Send("GET /v1/ws?topic=a HTTP/1.1\r\nHost: h\r\n\r\n")
	answer := c.Answer()
	answer.Body.Close()
	require.Equal(t, "13", answer.Header.Get("Sec-WebSocket-Version"), "no upgrade at all")
	require.Zero(t, k.Subscriptions(), "nothing was opened")
}

// A header may have several lines.
func TestUpgradeHeadersMayHaveSeveralLines(t *testing.T) {
	k := newLaneKit(t, lane.HandOff)
	conn, err := k.Dial()
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /v1/ws HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: h2c, websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
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
			"Origin: http://h":                                                                      false,
			"Sec-WebSocket-Protocol: pubsubd.v1":                                                    true,
			"sec-websocket-protocol:pubsubd.v1":                                                     true,
			"Sec-WebSocket-Protocol: pubsubd.v1, bearer.c2VjcmV0":                                   true,
			"Sec-WebSocket-Protocol: bearer.c2VjcmV0,pubsubd.v1":                                    true,
			"Sec-WebSocket-Protocol: bearer.c2VjcmV0\r\nSec-WebSocket-Protocol: pubsubd.v1":         true,
			"Sec-WebSocket-Protocol: pubsubd.v1, pubsubd.v1":                                        true,
			"Sec-WebSocket-Protocol: bearer.c2VjcmV0":                                               false,
			"Sec-WebSocket-Protocol: graphql-ws, pubsubd.v2, PubSubD.v1, xpubsubd.v1, pubsubd.v1.1": false,
			"Sec-WebSocket-Protocol: ,, =\"pubsubd.v1\"":                                            false,
		} {
			c := k.Call()
			c.Send(upgradeWith(offer))
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
