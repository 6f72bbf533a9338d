package lane

import (
	"bytes"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A listener is how connections go back to net/http: an http.Server serves it
// beside the real one. What the lane has read comes first, whole and once, and
// the addresses are the connection's own.
type listener struct {
	metrics *metrics.Metrics
	conns   chan net.Conn
	done    chan struct{}
	once    sync.Once
}

func newListener(m *metrics.Metrics) *listener {
	return &listener{metrics: m, conns: make(chan net.Conn), done: make(chan struct{})}
}

// giveBack hands the connection of fd over as c, or closes it.
func (l *listener) giveBack(fd int, counted *limit.Connection, c *prefixed) {
	file := os.NewFile(uintptr(fd), "connection")
	defer file.Close() // FileConn has a descriptor of its own
	nc, err := net.FileConn(file)
	if err != nil {
		counted.Leave()
		return
	}
	c.Conn = listen.NewBegun(nc, counted, l.metrics)
	if nc.RemoteAddr() == nil || !l.give(c) {
		_ = c.Close() // the client has gone, or the lane is closed
	}
}

// give hands c over and reports whether someone took it.
func (l *listener) give(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.done:
		return false
	}
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
func (l *listener) Addr() net.Addr { return laneAddr{} }

type laneAddr struct{}

func (laneAddr) Network() string { return "lane" }
func (laneAddr) String() string  { return "lane" }

// A prefixed connection is one of which something was read already. It can be
// taken over again, once that was read anew. It hides the descriptor meanwhile.
type prefixed struct {
	*listen.Conn
	strikes uint8       // see conn
	prefix  []byte      // read first; by one goroutine at a time, as net/http does
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

// SyscallConn hides the descriptor.
func (c *prefixed) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// NetConn returns the connection itself, of which the prefix is no part.
func (c *prefixed) NetConn() net.Conn { return c.Conn }

// unwrap returns the connection itself, unless some of the prefix is unread or it
// came back too often.
func unwrap(c net.Conn) (conn net.Conn, strikes uint8) {
	p, ok := c.(*prefixed)
	if ok && p.spent.Load() && p.strikes < maxStrikes {
		return p.Conn, p.strikes
	}
	return c, 0
}

// handBack gives the connection to net/http with what was read of it.
func (c *conn) handBack() {
	w := &c.requests
	w.strikes++
	if w.served >= worthwhile {
		w.strikes = 0
	}
	back := &prefixed{prefix: bytes.Clone(c.bytes()), strikes: w.strikes}
	c.release()
	c.lane.metrics.LaneReturned.Inc()
	c.lane.running.Go(func() { c.lane.back.giveBack(c.fd, c.counted, back) })
}

// A connection whose requests go back again and again is left there: taking it over
// costs more than net/http does for a request.
const (
	worthwhile = 8 // requests on the lane that make up for a way there and back
	maxStrikes = 3
)
