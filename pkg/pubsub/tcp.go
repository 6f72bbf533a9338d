package pubsub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A tcpPort is where a daemon speaks without HTTP.
type tcpPort struct {
	addr string
	tls  *tls.Config // nil: in the clear
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

var errNoTCPAddr = errors.New("the transport tcp needs the daemon's TCP port: WithTCPAddr")

// WithTCPAddr sets the address of the daemon's TCP port (its setting listen.tcp), as
// host:port, for the transport TCP. With a config the connection uses TLS, with host as the
// server name unless the config has another. WithHTTPClient does not affect it. Default:
// none.
func WithTCPAddr(addr string, config *tls.Config) Option {
	return func(c *Client) error {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return fmt.Errorf("the daemon's TCP port: %w", err)
		}
		if config != nil && config.ServerName == "" {
			config = config.Clone()
			config.ServerName = host
		}
		c.tcp.addr, c.tcp.tls = addr, config
		return nil
	}
}

// openTCP opens a stay over TCP.
func (l *loop) openTCP(life, ctx context.Context, o subscribeOptions, starts []wire.Start) (s stay, begun opened, err error) {
	err = l.client.tokens.use(ctx, func(token string) (err error) {
		dial := func() (link, bool, error) { return l.client.dialTCP(ctx, o, starts, token) }
		s, begun, err = openSocket(life, ctx, l.client.clock, dial, starts, l.limits)
		return err
	})
	return s, begun, err
}

// dialTCP connects, sends the token, and asks for starts.
func (c *Client) dialTCP(ctx context.Context, o subscribeOptions, starts []wire.Start, token string) (link, bool, error) {
	if c.tcp.addr == "" {
		return nil, false, &hopelessError{errNoTCPAddr}
	}
	conn, err := c.tcp.connect(ctx)
	if err != nil {
		return nil, false, whyFailed(ctx, err)
	}
	l := &tcpLink{conn}
	open := openRequest(o, starts)
	request := wire.ConnectRequest{Topics: starts, Client: open.Client, Echo: open.Echo}
	if token != "" {
		request.Auth = &token
	}
	if err := l.write(ctx, request); err != nil {
		conn.Close()
		return nil, false, err
	}
	return l, true, nil
}

func (p *tcpPort) connect(ctx context.Context) (net.Conn, error) {
	conn, err := p.dial(ctx, "tcp", p.addr)
	if err != nil || p.tls == nil {
		return conn, err
	}
	secured := tls.Client(conn, p.tls)
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secured, nil
}

// A tcpLink is a connection whose two directions are sequences of CBOR items (RFC
// 8742).
type tcpLink struct{ conn net.Conn }

func (l *tcpLink) Read(p []byte) (int, error) { return l.conn.Read(p) }

func (l *tcpLink) decoder(r io.Reader) decoder { return CBOR.decoder(r) }

func (l *tcpLink) send(ctx context.Context, c wire.Command) error { return l.write(ctx, c) }

// write is for one goroutine: the loop's, which opens as well.
func (l *tcpLink) write(ctx context.Context, value any) error {
	item, err := CBOR.encode(value)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.conn.Close() })()
	if _, err := l.conn.Write(item); err != nil {
		l.conn.Close() // half of an item may be out
		return whyFailed(ctx, err)
	}
	return nil
}

// tellPresence says nothing: only WebSockets have pings that go unanswered.
func (l *tcpLink) tellPresence() {}

func (l *tcpLink) Close() { l.conn.Close() }
