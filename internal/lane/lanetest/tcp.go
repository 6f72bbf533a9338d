package lanetest

import (
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// OpenPort listens for bare TCP connections and returns the address.
func (k *Kit) OpenPort() string {
	k.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(k, err)
	port := transport.NewPort(k.Lane)
	var running sync.WaitGroup
	running.Go(func() { require.ErrorIs(k, port.Serve(k.Parts.Counted(l)), net.ErrClosed) })
	k.Cleanup(func() {
		l.Close()
		k.Lane.Close()
		port.Close()
		running.Wait()
	})
	return l.Addr().String()
}

// A Commander is a client of a two-way connection.
type Commander interface {
	Send(command any)
	WantReply(ref uint64) wire.Reply
}

// RawTCP is a Commander on a TCP connection.
type RawTCP struct {
	testing.TB
	Conn   net.Conn
	Frames *wire.CBORDecoder
}

// Send sends a command, or the item that opens the connection.
func (c *RawTCP) Send(command any) {
	c.Helper()
	text, err := json.Marshal(command)
	require.NoError(c, err)
	_, err = c.Conn.Write(cbor.AppendFromJSON(nil, text))
	require.NoError(c, err)
}

// WantReply waits for a reply, drops frames before it, and requires its ref.
func (c *RawTCP) WantReply(ref uint64) wire.Reply {
	c.Helper()
	for {
		got, err := c.Frames.Next()
		require.NoError(c, err)
		if got.Reply != nil {
			require.Equal(c, ref, *got.Reply.Ref)
			return *got.Reply
		}
	}
}

// Commander attaches a two-way connection to a session, by "TCP", "WebSocket" or "WebSocket in CBOR".
func (k *Kit) Commander(by, session string) Commander {
	if by != "TCP" {
		format := map[bool]string{true: "&format=cbor"}[strings.HasSuffix(by, "CBOR")]
		s := k.DialSocket("/v1/ws?session=" + session + "&ack=0" + format)
		k.Cleanup(s.Close)
		s.Hello()
		go func() { // a gap must not keep a reply back
			for range s.Received() {
			}
		}()
		return s
	}
	conn, err := net.Dial("tcp", k.OpenPort())
	require.NoError(k, err)
	k.Cleanup(func() { conn.Close() })
	c := &RawTCP{TB: k.TB, Conn: conn, Frames: wire.NewCBORDecoder(conn)}
	c.Send(wire.ConnectRequest{Session: &session, Ack: new(uint64)})
	c.Send(wire.Command{Ping: true, Ref: new(uint64)}) // the connection is open once this is answered
	require.Nil(k, c.WantReply(0).Problem)
	return c
}

// AsCBOR encodes JSON as a sequence in CBOR.
func AsCBOR(texts ...string) (all []byte) {
	for _, text := range texts {
		all = cbor.AppendFromJSON(all, []byte(text))
	}
	return all
}
