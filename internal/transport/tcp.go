package transport

import (
	"context"
	"net"
	"sync"
	"time"
)

// A Host opens the TCP connections of a Port and serves them.
type Host interface {
	// Converse returns the conversation of a connection, see Server.NewTCP.
	Converse(c net.Conn) *Conversation

	// Open opens what the first item of a connection asks for. The error ends the
	// connection, and its client is told if it is a *wire.Problem.
	Open(c net.Conn, first []byte) (Duplex, error)

	// Carry serves the connection, and closes it. It may return before that.
	Carry(ctx context.Context, c net.Conn, d Duplex)
}

// A Port accepts TCP connections, on which both sides send a CBOR sequence (RFC 8742):
// the client's first item says what it opens, the server's first is hello. All methods
// may be called concurrently.
type Port struct {
	host    Host
	opening connections    // those that have not said what they open
	running sync.WaitGroup // Serve, and goroutines of connections until Carry returns
}

// NewPort returns a Port for clients of host.
func NewPort(host Host) *Port { return &Port{host: host} }

// Serve accepts connections from l until it is closed. The error is never nil.
func (p *Port) Serve(l net.Listener) error {
	if !p.start() {
		return net.ErrClosed
	}
	defer p.running.Done()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if p.opening.add(c) {
			p.running.Go(func() { p.serve(c) })
		}
	}
}

// start notes that Serve runs, unless Close was called before: it waits for Serve.
func (p *Port) start() bool {
	p.opening.mu.Lock()
	defer p.opening.mu.Unlock()
	if !p.opening.closed {
		p.running.Add(1)
	}
	return !p.opening.closed
}

// Close closes the connections that have not said what they open, and returns when the
// port has no goroutine left. Call it after closing Serve's listener and the
// connections that Carry serves.
func (p *Port) Close() {
	p.opening.close()
	p.running.Wait()
}

// serve serves a connection once its client has said what it opens.
func (p *Port) serve(c net.Conn) {
	l := newLink(c, p.host.Converse(c), nil)
	var d Duplex
	err := net.ErrClosed
	if first := l.next(context.Background()); first != nil {
		d, err = p.host.Open(c, first)
	}
	p.opening.remove(c)
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
