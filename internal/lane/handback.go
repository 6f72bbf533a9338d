package lane

import (
	"bytes"
	"net"
	"os"
	"sync"

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
	ahead := bytes.Clone(c.buf[:c.filled])
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
		back := listen.New(nc, c.counted, c.lane.cfg.Metrics, ahead)
		back.Strikes = w.strikes
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

// movable returns nc if the lane can take it over, or nil: the lane has handed it back too
// often or net/http has not read all that the lane read before, or TLS is on it.
func movable(nc net.Conn) *listen.Conn {
	c, ok := nc.(*listen.Conn)
	if !ok || c.IsAhead() || c.Strikes >= maxStrikes {
		return nil
	}
	return c
}
