package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A bare is a client of the TCP port.
type bare struct {
	*testing.T
	conn   net.Conn
	frames *wire.CBORDecoder
}

func (d *running) connect(conn net.Conn, opening string) *bare {
	d.Helper()
	b := &bare{d.T, conn, wire.NewCBORDecoder(conn)}
	d.Cleanup(func() { conn.Close() })
	_, err := conn.Write(cbor.AppendFromJSON(nil, []byte(opening)))
	require.NoError(d, err)
	require.NotNil(d, b.next().Hello)
	return b
}

func (b *bare) next() wire.Content {
	b.Helper()
	require.NoError(b, b.conn.SetReadDeadline(time.Now().Add(surely)))
	for {
		c, err := b.frames.Next()
		require.NoError(b, err)
		if c != (wire.Content{}) {
			return c
		}
	}
}

// wantDrained stops the daemon. The client receives `draining`, and then the connection
// ends.
func (b *bare) wantDrained(d *running) {
	b.Helper()
	d.stop()
	require.Equal(b, wire.CodeDraining, b.next().End.Code)
	_, err := b.frames.Next()
	require.ErrorIs(b, err, io.EOF)
	require.NoError(b, b.conn.Close())
	require.NoError(b, d.wait())
	require.Empty(b, d.logged.FilterMessageSnippet("cutting off").All(), "nobody is waited for")
}

// Clients of the TCP port get messages that were published over HTTP, in clear and over
// TLS, on the lane and off it. When the daemon drains, they receive `draining`.
func TestTheTCPPort(t *testing.T) {
	for name, lane := range map[string]string{"on the lane": "handoff", "off the lane": "off"} {
		t.Run(name, func(t *testing.T) {
			d := start(t, func(c *config.Config) { c.Listen.TCP, c.Lane, c.DrainWindow = "127.0.0.1:0", lane, surely })
			conn, err := net.Dial("tcp", d.TCPAddr())
			require.NoError(t, err)
			b := d.connect(conn, `{"topics":["a"]}`)
			d.post("/v1/topics/a/messages", `{"n":[1,2.5,"ü"]}`)
			require.Equal(t, `{"n":[1,2.5,"ü"]}`, string(b.next().Message.Data))
			b.wantDrained(d)
		})
	}
	t.Run("over TLS", func(t *testing.T) {
		pair := certtest.New(t)
		d := start(t, func(c *config.Config) {
			c.Listen.TCP, c.TLS, c.DrainWindow = "127.0.0.1:0", config.TLS{Cert: pair.Cert, Key: pair.Key}, surely
		})
		conn, err := tls.Dial("tcp", d.TCPAddr(), &tls.Config{RootCAs: poolOf(t, pair)})
		require.NoError(t, err)
		require.Empty(t, conn.ConnectionState().NegotiatedProtocol)
		b := d.connect(conn, `{"topics":["a"]}`)
		_, err = conn.Write(cbor.AppendFromJSON(nil, []byte(`{"publish":{"topic":"a","data":"x"},"ref":1}`)))
		require.NoError(t, err)
		require.Equal(t, uint64(1), b.next().Reply.Position.Offset)
		require.Equal(t, `"x"`, string(b.next().Message.Data))
		b.wantDrained(d)
	})
}

func poolOf(t testing.TB, pair certtest.Pair) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(pair.Cert)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(pem))
	return pool
}

// A WebSocket over TLS works as in clear, also in a drain.
func TestAWebSocketOverTLS(t *testing.T) {
	pair := certtest.New(t)
	d := startSecure(t, pair)
	dialer := ws.Dialer{TLSConfig: &tls.Config{RootCAs: poolOf(t, pair), NextProtos: []string{"http/1.1"}}}
	conn, buffered, _, err := dialer.Dial(context.Background(), "wss://"+d.PublicAddr()+"/v1/ws?topic=a")
	require.NoError(t, err)
	defer conn.Close()
	var r io.Reader = conn
	if buffered != nil {
		r = buffered
	}
	frame := socketFrame(t, r)
	require.Contains(t, string(frame.Payload), `"hello"`)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: poolOf(t, pair)}}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("https://"+d.PublicAddr()+"/v1/topics/a/messages", "application/json", strings.NewReader("17"))
	require.NoError(t, err)
	resp.Body.Close()
	frame = socketFrame(t, r)
	require.Contains(t, string(frame.Payload), `"data":17`)
	d.stop()
	for _, want := range []string{`{"end":{`, "draining"} {
		frame = socketFrame(t, r)
		require.Contains(t, string(frame.Payload), want)
	}
	require.NoError(t, conn.Close())
	require.NoError(t, d.wait())
}

// socketFrame reads one short WebSocket frame.
func socketFrame(t *testing.T, r io.Reader) ws.Frame {
	t.Helper()
	head, err := ws.ReadHeader(r)
	require.NoError(t, err)
	require.Less(t, head.Length, int64(1<<20))
	frame := ws.Frame{Header: head, Payload: make([]byte, head.Length)}
	_, err = io.ReadFull(r, frame.Payload)
	require.NoError(t, err)
	return frame
}
