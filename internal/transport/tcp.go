package transport

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
)

// A Host takes in the clients of bare connections.
type Host interface {
	// Open reads what a client opens its connection with, and opens that. The error,
	// which may be a *wire.Problem to be told, ends the connection.
	Open(c net.Conn, opening []byte) (Duplex, error)

	// Carry serves the connection with what was opened for it, and closes it. It may
	// return before that is over.
	Carry(ctx context.Context, c net.Conn, d Duplex)

	// Reader returns what reads a connection.
	Reader(c net.Conn) Reader
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

// openTimeout is how long a client may take to say what it opens, and may take to read
// that it cannot.
const openTimeout = 10 * time.Second

// take reads what a connection opens, and has it carried.
func (p *Port) take(c net.Conn) {
	defer p.running.Done()
	d, err := p.open(c)
	p.opened(c)
	if err != nil {
		p.refuse(c, err)
		return
	}
	_ = c.SetDeadline(time.Time{})
	p.host.Carry(context.Background(), c, d)
}

func (p *Port) open(c net.Conn) (Duplex, error) {
	if err := c.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return Duplex{}, err
	}
	reader := p.host.Reader(c)
	opening, ahead, err := readOpening(c, reader)
	var d Duplex
	if err == nil {
		d, err = p.host.Open(c, opening)
	}
	if err != nil {
		reader.Close()
		return Duplex{}, err
	}
	d.Request.Via, d.Request.Format = ViaTCP, frame.CBOR
	d.Reader, d.Ahead = reader, ahead
	return d, nil
}

// readOpening returns the first that comes which is whole, and what came with it.
func readOpening(c net.Conn, reader Reader) (opening, ahead []byte, err error) {
	buf := make([]byte, readBytes)
	for {
		m, err := c.Read(buf)
		if err != nil {
			return nil, nil, err
		}
		for rest := buf[:m]; len(rest) > 0; {
			n, in, err := reader.Read(rest)
			if err != nil {
				return nil, nil, err
			}
			if rest = rest[n:]; in.Command != nil {
				return in.Command, rest, nil
			}
		}
	}
}

// refuse tells why nothing is opened, if that is for the client.
func (p *Port) refuse(c net.Conn, err error) {
	defer c.Close()
	problem := asProblem(err)
	if problem == nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(farewell))
	_, _ = c.Write(frame.CBOR.AppendEnd(nil, problem.Spread()))
	l := &line{conn: c}
	l.endWriting()
	l.discard()
}
