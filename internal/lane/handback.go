package lane

import (
	"bytes"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/pubsubd/pubsubd/internal/listen"
)

// A listener passes connections that the lane hands back to an http.Server, which serves
// it beside the real listener.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Net: "lane", Name: "lane"} }

// handBack gives the connection to net/http, with the bytes that were read and not
// served. The connection keeps its addresses.
func (c *conn) handBack() {
	w := &c.requests
	w.strikes++
	if w.served >= worthwhile {
		w.strikes = 0
	}
	back := &prefixed{prefix: bytes.Clone(c.bytes()), strikes: w.strikes}
	c.release()
	c.lane.cfg.Metrics.LaneReturned.Inc()
	c.lane.running.Go(func() {
		file := os.NewFile(uintptr(c.fd), "connection")
		defer file.Close() // FileConn has a descriptor of its own
		nc, err := net.FileConn(file)
		if err != nil {
			c.counted.Leave()
			return
		}
		back.Conn = listen.New(nc, c.counted, c.lane.cfg.Metrics)
		if nc.RemoteAddr() == nil { // the client has left
			_ = back.Close()
			return
		}
		select {
		case c.lane.back.conns <- back:
		case <-c.lane.back.done:
			_ = back.Close()
		}
	})
}

// A connection whose requests the lane hands back again and again stays with net/http:
// the two moves cost more than net/http does for a request.
const (
	worthwhile = 8 // requests that the lane serves to make up for both moves
	maxStrikes = 3
)

// A prefixed connection returns the bytes that the lane has read before those that come.
// The lane can take the connection over again once net/http has read the prefix. Until
// then it hides the descriptor.
type prefixed struct {
	*listen.Conn
	strikes uint8       // see requests
	prefix  []byte      // owned by the goroutine that reads
	spent   atomic.Bool // the prefix was read
}

// Read implements net.Conn.
func (c *prefixed) Read(b []byte) (int, error) {
	if len(c.prefix) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.prefix)
	if c.prefix = c.prefix[n:]; len(c.prefix) == 0 {
		c.prefix = nil
		c.spent.Store(true)
	}
	return n, nil
}

// NetConn returns the connection without the prefix.
func (c *prefixed) NetConn() net.Conn { return c.Conn }

// unwrap returns the connection under c if the lane can take it over, or nil: part of a
// prefix is unread, the lane has handed it back too often, or it is of another type.
func unwrap(c net.Conn) (conn *listen.Conn, strikes uint8) {
	switch c := c.(type) {
	case *listen.Conn:
		return c, 0
	case *prefixed:
		if c.spent.Load() && c.strikes < maxStrikes {
			return c.Conn, c.strikes
		}
	}
	return nil, 0
}
