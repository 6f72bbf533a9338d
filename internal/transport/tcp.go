package transport

import (
	"context"
	"net"
	"sync"
	"time"
)

// A Host takes in the clients of bare connections.
type Host interface {
	// Open reads what a client opens its connection with, and opens that. The error,
	// which may be a *wire.Problem to be told, ends the connection.
	Open(c net.Conn, opening []byte) (Duplex, error)

	// Carry serves the connection with what was opened for it, and closes it. It may
	// return before that is over.
	Carry(ctx context.Context, c net.Conn, d Duplex)

	// Converse returns the conversation of a connection, see Server.NewTCP.
	Converse(c net.Conn) *Conversation
}

// A Port takes bare connections, on which both sides send a CBOR sequence (RFC 8742):
// the client first what it opens, the daemon hello, and then whatever there is. All
// methods may be called concurrently.
type Port struct {
	host Host

	mu      sync.Mutex        // guards the fields below
	opening map[net.Conn]bool // connections that have not said what they open
	closed  bool
	running sync.WaitGroup // of their goroutines, and of those that Carry does not return from
}

// NewPort returns a Port whose clients are host's.
func NewPort(host Host) *Port { return &Port{host: host, opening: make(map[net.Conn]bool)} }

// Serve takes connections from l until it is closed. The error is never nil.
func (p *Port) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if p.add(c) {
			go p.take(c)
		}
	}
}

func (p *Port) add(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.opening[c] = true
	p.running.Add(1)
	return true
}

func (p *Port) opened(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.opening, c)
}

// Close closes the connections that have not said what they open, and returns when
// the port is done with all. It is called after Serve's listener and those that Carry
// serves are closed.
func (p *Port) Close() {
	p.mu.Lock()
	p.closed = true
	for c := range p.opening {
		c.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// take has a connection carried once its client has said what it opens.
func (p *Port) take(c net.Conn) {
	defer p.running.Done()
	l := newLink(c, p.host.Converse(c), nil)
	var d Duplex
	err := net.ErrClosed
	if first := l.next(context.Background()); first != nil {
		d, err = p.host.Open(c, first)
	}
	p.opened(c)
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
