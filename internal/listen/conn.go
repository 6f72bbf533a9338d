// Package listen is the connections that clients make, as the daemon's listeners let
// them in. Each has a seat, counts the bytes on it, and counts the fault of its client
// if that is why the daemon ends it.
package listen

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A Conn is one connection. It leaves its seat when it is closed. Whoever reads and
// writes by its descriptor has to count, and to share the seat.
//
// net/http ends what takes too long by deadlines, and tells nobody which it was. So a
// Conn knows what is awaited of the client: ConnState, Serving and Opened tell it.
type Conn struct {
	net.Conn // immutable, like the next two
	seat     *limit.Seat
	metrics  *metrics.Metrics

	awaits   atomic.Int32 // an awaited
	heard    atomic.Bool  // something of it
	recalled atomic.Bool  // the deadline for reading had passed when it was set, so that a Read returns
	ended    atomic.Bool  // for its client's fault
	closed   atomic.Bool
}

// awaited is what a client is to send next.
type awaited = int32

const (
	aHead     awaited = iota // of a request; a handshake, or the opening of a bare connection
	noRequest                // yet: one has ended
	aRequest                 // whenever it likes
	aBody                    // of the request that is served
	elsewhere                // what others count
)

// New returns the connection nc of a client who has that seat, or none.
func New(nc net.Conn, seat *limit.Seat, m *metrics.Metrics) *Conn {
	return &Conn{Conn: nc, seat: seat, metrics: m}
}

// NewBegun is New for a connection of whose request a part was read.
func NewBegun(nc net.Conn, seat *limit.Seat, m *metrics.Metrics) *Conn {
	c := New(nc, seat, m)
	c.heard.Store(true)
	return c
}

// Seat returns the connection's seat; nil: it has none.
func (c *Conn) Seat() *limit.Seat { return c.seat }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.metrics.BytesIn.Add(float64(n))
		c.hear()
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && !c.recalled.Load() {
		c.late()
	}
	return n, err
}

func (c *Conn) hear() {
	if !c.heard.Load() {
		c.awaits.CompareAndSwap(aRequest, aHead)
		c.heard.Store(true)
	}
}

// late counts what did not come in time.
func (c *Conn) late() {
	switch c.awaits.Load() {
	case aHead:
		if c.heard.Load() {
			c.End(metrics.SlowHead)
		} else {
			c.End(metrics.Silent)
		}
	case aBody:
		c.End(metrics.SlowBody)
	}
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.metrics.BytesOut.Add(float64(n))
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		c.End(metrics.SlowReader)
	}
	return n, err
}

// End counts why the daemon ends the connection. What follows from it counts no more.
// It may be called on nil.
func (c *Conn) End(why metrics.Ending) {
	if c != nil && c.ended.CompareAndSwap(false, true) {
		c.metrics.Ended(why)
	}
}

// SetReadDeadline implements net.Conn. After a request net/http sets it twice: for the
// wait, and when there is something of the next request, which may have come with the
// one before.
func (c *Conn) SetReadDeadline(t time.Time) error {
	switch {
	case c.awaits.CompareAndSwap(noRequest, aRequest):
	case c.awaits.CompareAndSwap(aRequest, aHead):
		c.heard.Store(true)
	}
	c.recalled.Store(!t.IsZero() && !t.After(time.Now()))
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.recalled.Store(!t.IsZero() && !t.After(time.Now()))
	return c.Conn.SetDeadline(t)
}

// SyscallConn implements syscall.Conn, if the connection does.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// CloseWrite ends this side, if the connection has sides, as net/http does after the
// answer to a request that it does not read to its end.
func (c *Conn) CloseWrite() error {
	c.awaits.Store(elsewhere)
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	if c.closed.CompareAndSwap(false, true) {
		c.seat.Leave()
	}
	return err
}

// Serving is told that a request is being served. It may be called on nil.
func (c *Conn) Serving() {
	if c != nil {
		c.awaits.Store(aBody)
	}
}

// Opened is told that who serves the connection now counts for itself what it awaits.
// It may be called on nil.
func (c *Conn) Opened() {
	if c != nil {
		c.awaits.Store(elsewhere)
	}
}

// ConnState is for http.Server.ConnState.
func ConnState(nc net.Conn, state http.ConnState) {
	c := Of(nc)
	if c == nil {
		return
	}
	switch state {
	case http.StateIdle:
		c.heard.Store(false)
		c.awaits.Store(noRequest)
	case http.StateHijacked:
		c.awaits.Store(elsewhere)
	}
}

// Of returns the Conn that is nc, or that it is made of, as a tls.Conn is; nil: none
// is.
func Of(nc net.Conn) *Conn {
	for {
		switch made := nc.(type) {
		case *Conn:
			return made
		case interface{ NetConn() net.Conn }:
			nc = made.NetConn()
		default:
			return nil
		}
	}
}

// SeatOf returns the seat of the client of nc; nil: it has none.
func SeatOf(nc net.Conn) *limit.Seat {
	if c := Of(nc); c != nil {
		return c.seat
	}
	return nil
}

// key is where a context keeps the connection.
type key struct{}

// NewContext returns a context of requests on nc.
func NewContext(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, key{}, nc)
}

// FromContext returns what NewContext was given, or nil.
func FromContext(ctx context.Context) net.Conn {
	nc, _ := ctx.Value(key{}).(net.Conn)
	return nc
}
