package pubsub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestTCPNeedsAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New("http://127.0.0.1:8080")
		require.NoError(t, err)
		began := time.Now()
		_, err = c.Subscribe(t.Context(), []wire.Start{FromNow("a")}, WithTransport(TCP))
		require.ErrorIs(t, err, errNoTCPAddr)
		require.Zero(t, time.Since(began))
		_, err = New("http://127.0.0.1:8080", WithTCPAddr("127.0.0.1", nil))
		require.ErrorContains(t, err, "missing port")
	})
}

// dialsTo has the client's TCP connections answered by serve.
func dialsTo(t *testing.T, serve func(net.Conn)) Option {
	return func(c *Client) error {
		c.tcp.dial = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			served := make(chan struct{})
			go func() {
				defer close(served)
				defer far.Close()
				serve(far)
			}()
			t.Cleanup(func() { <-served })
			return near, nil
		}
		return nil
	}
}

func TestWhatATCPConnectionBeginsWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said map[string]any
		c, err := New("http://daemon", WithTCPAddr("daemon:8082", nil), dialsTo(t, func(conn net.Conn) {
			_ = cbor.NewDecoder(conn).Decode(&said)
			_, _ = conn.Write(wire.Content{End: problem.New(wire.CodeForbidden, "", "not you")}.AppendCBOR(nil))
		}))
		require.NoError(t, err)
		_, err = c.Subscribe(t.Context(), []wire.Start{FromOldest("a"), Paced(FromNow("b"), time.Second)}, WithTransport(TCP), WithoutOwn("tab:7"))
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeForbidden})
		require.Equal(t, map[string]any{
			"topics": []any{"a@oldest", map[any]any{"topic": "b", "max_rate": "1/1s"}},
			"client": "tab:7", "echo": false,
		}, said)
	})
}

// Something else listens there.
func TestATCPPortOfAnotherLanguage(t *testing.T) {
	for name, says := range map[string]string{
		"HTTP":     "HTTP/1.1 400 Bad Request\r\n\r\n",
		"a break":  "\xff",
		"no frame": "\x81\x61x",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := New("http://daemon", WithTCPAddr("daemon:8082", nil), dialsTo(t, func(conn net.Conn) {
					go func() { _, _ = io.WriteString(conn, says) }()
					_, _ = io.Copy(io.Discard, conn)
				}))
				require.NoError(t, err)
				_, err = c.Subscribe(t.Context(), []wire.Start{FromNow("a")}, WithTransport(TCP), WithOpenTimeout(time.Hour))
				require.ErrorIs(t, err, errOpenTimeout)
				require.ErrorAs(t, err, new(*UnexpectedAnswerError))
			})
		})
	}
}

// What is never read is given up in time.
func TestATCPPortThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New("http://daemon", WithTCPAddr("daemon:8082", nil), dialsTo(t, func(net.Conn) { time.Sleep(time.Hour) }))
		require.NoError(t, err)
		began := time.Now()
		_, err = c.Subscribe(t.Context(), []wire.Start{FromNow("a")}, WithTransport(TCP), WithOpenTimeout(time.Second))
		require.ErrorIs(t, err, errOpenTimeout)
		require.Equal(t, time.Second, time.Since(began))
	})
}

func TestTCPMaySpeakTLS(t *testing.T) {
	authority := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer authority.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(authority.Certificate())
	serves := &tls.Config{Certificates: authority.TLS.Certificates}

	f := newFake()
	f.publish("a", 1)
	port := dialsTo(t, func(conn net.Conn) { f.serveTCP(tls.Server(conn, serves)) })
	c, err := New("http://daemon", WithTCPAddr("example.com:8082", &tls.Config{RootCAs: trusted}), port)
	require.NoError(t, err)
	s := subscribe(t, c, []wire.Start{FromOldest("a")}, WithTransport(TCP))
	wantNext(t, s, "a@k3:1")
	s.Close()

	c, err = New("http://daemon", WithTCPAddr("example.com:8082", &tls.Config{}), port)
	require.NoError(t, err)
	ctx, giveUp := context.WithCancelCause(t.Context())
	_, err = c.Subscribe(ctx, []wire.Start{FromNow("a")}, WithTransport(TCP), WithRetryNotify(func(err error, _ time.Duration) { giveUp(err) }))
	require.ErrorContains(t, err, "certificate")
}

// A client that would speak HTTP/2 speaks HTTP/1.1 for this: there is no Upgrade in
// HTTP/2.
func TestAWebSocketOverTLSBesideHTTP2(t *testing.T) {
	f := newFake()
	f.publish("a", 1)
	server := httptest.NewUnstartedServer(f)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	c, err := New(server.URL, WithHTTPClient(server.Client()))
	require.NoError(t, err)
	_, err = c.PublishJSON(t.Context(), "b", 1)
	require.NoError(t, err)
	s := subscribe(t, c, []wire.Start{FromOldest("a")}, WithTransport(WebSocket)) // Auto would try others on a busy machine
	wantNext(t, s, "a@k3:1")
	s.Close()
}
