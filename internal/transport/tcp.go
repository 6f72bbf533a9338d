package transport

import (
	"context"
	"net"
	"time"
)

// A Host opens the TCP connections of a Port and serves them.
type Host interface {
	// Converse returns the conversation of a connection; see Server.NewTCP.
	Converse(c net.Conn) *Conversation

	// Open opens the session that the first item of a connection names. An error ends the
	// connection; the client gets it if it is a *wire.Problem.
	Open(c net.Conn, first []byte) (Duplex, error)

	// Carry serves the connection and closes it. It may return earlier.
	Carry(ctx context.Context, c net.Conn, d Duplex)
}

// A Port accepts TCP connections, on which both sides send a CBOR sequence (RFC 8742). The
// client's first item opens a session, the server's first is hello. All methods may be
// called concurrently.
type Port struct {
	host    Host
	serving connections // until Carry returns
}

// NewPort returns a Port for clients of host.
func NewPort(host Host) *Port {
	return &Port{host: host, serving: connections{open: make(map[net.Conn]bool)}}
}

// Serve accepts connections from l until it is closed. The error is never nil.
func (p *Port) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if p.serving.add(c) {
			go p.serve(c)
		}
	}
}

// Close closes the connections that have not opened a session, and waits for the
// goroutines of all connections. Call it after closing Serve's listener and the
// connections that Carry serves.
func (p *Port) Close() {
	p.serving.close()
	<-p.serving.drain()
}

// serve waits for the first item of a connection, and then serves the connection.
func (p *Port) serve(c net.Conn) {
	defer p.serving.remove(c)
	l := newLink(c, p.host.Converse(c), nil)
	var d Duplex
	err := net.ErrClosed
	if a := l.next(context.Background()); a.HasCommand() {
		first := a.Command
		if a.Large != nil {
			first, _ = a.Large() // it is neither compressed nor text
		}
		d, err = p.host.Open(c, first)
	}
	if err != nil {
		l.end(err)
		return
	}
	l.talk.Opened(time.Now())
	_ = c.SetDeadline(time.Time{})
	d.Request.Via, d.Request.Format = ViaTCP, l.talk.Format()
	d.Conversation, d.Ahead = l.talk, l.unread
	p.host.Carry(context.Background(), c, d)
}
