package daemon

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A peer is the client's side of a two-way connection. Its texts are JSON.
type peer interface {
	send(text string)
	receive() (text string)
}

// talk runs an example of a two-way connection and returns it with the actual answers. It
// sends each line after "> ", and receives a frame for each line after "<".
func (s *shell) talk(kind, lines string) string {
	s.Helper()
	var p peer
	if kind == "tcp" {
		p = s.dialTCP()
	}
	var b strings.Builder
	for line := range strings.Lines(lines) {
		line = strings.TrimSuffix(line, "\n")
		switch text, ok := strings.CutPrefix(line, "> "); {
		case ok:
			b.WriteString(line + "\n")
			p.send(text)
		case strings.HasPrefix(line, "<"):
			b.WriteString("< " + strings.TrimSuffix(s.alike(p.receive()), "\n") + "\n")
		default:
			b.WriteString(line + "\n")
			p = s.dialWebSocket(strings.TrimPrefix(line, "GET "))
		}
	}
	return b.String()
}

func (s *shell) expand(text string) string {
	return os.Expand(text, func(name string) string { return s.vars[name] })
}

// A webSocketPeer prints the code of the close frame as "close 1000".
type webSocketPeer struct{ socket }

func (s *shell) dialWebSocket(path string) *webSocketPeer {
	s.Helper()
	conn, buffered, _, err := ws.Dialer{Timeout: aMinute}.Dial(s.Context(), "ws://"+s.PublicAddr()+s.expand(path))
	require.NoError(s, err)
	s.Cleanup(func() { conn.Close() })
	require.NoError(s, conn.SetDeadline(time.Now().Add(aMinute)))
	p := &webSocketPeer{socket{T: s.T, Conn: conn, in: conn}}
	if buffered != nil {
		p.in = buffered
	}
	return p
}

func (p *webSocketPeer) send(text string) { p.socket.send(ws.NewTextFrame([]byte(text))) }

func (p *webSocketPeer) receive() (text string) {
	p.Helper()
	for {
		switch frame := socketFrame(p.T, p.in); frame.Header.OpCode {
		case ws.OpText:
			return string(frame.Payload)
		case ws.OpClose:
			code, _ := ws.ParseCloseFrameData(frame.Payload)
			return fmt.Sprintf("close %d", code)
		case ws.OpPing:
			p.socket.send(ws.NewPongFrame(frame.Payload))
		}
	}
}

type tcpPeer struct {
	*shell
	conn   net.Conn
	unread bytes.Buffer
}

func (s *shell) dialTCP() *tcpPeer {
	s.Helper()
	conn, err := net.Dial("tcp", s.TCPAddr())
	require.NoError(s, err)
	s.Cleanup(func() { conn.Close() })
	require.NoError(s, conn.SetDeadline(time.Now().Add(aMinute)))
	return &tcpPeer{shell: s, conn: conn}
}

func (p *tcpPeer) send(text string) {
	p.Helper()
	_, err := p.conn.Write(cbor.AppendFromJSON(nil, []byte(text)))
	require.NoError(p, err)
}

// receive returns the next item in diagnostic notation, which is JSON for all that frames
// with a JSON payload have.
func (p *tcpPeer) receive() (text string) {
	p.Helper()
	for {
		item, rest, err := cbor.Cut(p.unread.Bytes())
		if err == nil && len(item) > 0 {
			text = string(cbor.AppendJSON(nil, item))
			p.unread.Next(p.unread.Len() - len(rest))
			if text != "null" { // a heartbeat
				return text
			}
			continue
		}
		_, err = io.CopyN(&p.unread, p.conn, 1)
		require.NoError(p, err)
	}
}
