package lane

import (
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A listener is how connections go back to net/http: an http.Server serves it
// beside the real one. What the lane has read comes first, whole and once, and
// the addresses are the connection's own.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newListener() *listener {
	return &listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// giveBack hands the connection of fd over as c, or closes it.
func (l *listener) giveBack(fd int, c *prefixed) {
	file := os.NewFile(uintptr(fd), "connection")
	defer file.Close() // FileConn has a descriptor of its own
	nc, err := net.FileConn(file)
	if err != nil {
		return
	}
	c.Conn = nc
	if nc.RemoteAddr() == nil || !l.give(c) {
		_ = nc.Close() // the client has gone, or the lane is closed
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
// taken over again, once that was read anew. It hides the descriptor meanwhile. It
// counts what passes, but for the prefix, which was counted.
type prefixed struct {
	net.Conn
	metrics *metrics.Metrics
	strikes uint8       // see conn
	prefix  []byte      // read first; by one goroutine at a time, as net/http does
	spent   atomic.Bool // the prefix was read
}

// Read implements net.Conn.
func (c *prefixed) Read(b []byte) (int, error) {
	if len(c.prefix) == 0 {
		n, err := c.Conn.Read(b)
		c.metrics.BytesIn.Add(float64(n))
		return n, err
	}
	n := copy(b, c.prefix)
	if c.prefix = c.prefix[n:]; len(c.prefix) == 0 {
		c.prefix = nil
		c.spent.Store(true)
	}
	return n, nil
}

// Write implements net.Conn.
func (c *prefixed) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.metrics.BytesOut.Add(float64(n))
	return n, err
}

// unwrap returns the connection itself, unless some of the prefix is unread or it
// came back too often.
func unwrap(c any) (conn any, strikes uint8) {
	p, ok := c.(*prefixed)
	if ok && p.spent.Load() && p.strikes < maxStrikes {
		return p.Conn, p.strikes
	}
	return c, 0
}
