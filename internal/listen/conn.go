// Package listen is how connections come in: listeners, TLS, socket options, refusals.
// Each connection of a client has a seat, counts its bytes, and counts the client's
// fault if the daemon ends it for one.
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

// A Conn is one connection. It leaves its seat when it is closed. Code that reads and
// writes the descriptor itself must count the bytes, and share the seat.
//
// net/http ends slow clients by deadlines, and reports to nobody which deadline it was.
// So a Conn knows what the client is to send next, from ConnState, Serving and Opened.
type Conn struct {
	net.Conn // immutable, like the next four
	seat     *limit.Seat
	metrics  *metrics.Metrics // nil: an operator's connection, which is not counted
	listener *Listener        // that accepted it; nil: none
	accepted time.Time

	lastRead atomic.Int64 // when bytes last came: nanoseconds after accepted
	awaits   atomic.Int32 // an awaited
	silent   atomic.Bool  // nothing ever came; the listener knows it
	heard    atomic.Bool  // bytes came since the connection, or the request, began
	recalled atomic.Bool  // the read deadline lay in the past when it was set, to make a Read return
	ended    atomic.Bool  // for its client's fault
	closed   atomic.Bool
}

// awaited is what a client is to send next.
type awaited = int32

const (
	awaitsHead    awaited = iota // of a request; a handshake, or the opening of a connection without HTTP
	afterRequest                 // a request has ended; net/http is about to wait for the next
	awaitsRequest                // at any time
	awaitsBody                   // of the request being served
	countedByUser                // the connection's user counts slow clients itself
)

// New returns the connection nc of a client with that seat, which may be nil.
func New(nc net.Conn, seat *limit.Seat, m *metrics.Metrics) *Conn {
	return &Conn{Conn: nc, seat: seat, metrics: m, accepted: time.Now()}
}

// NewBegun is New for a connection of which part of a request was read.
func NewBegun(nc net.Conn, seat *limit.Seat, m *metrics.Metrics) *Conn {
	c := New(nc, seat, m)
	c.heard.Store(true)
	return c
}

// Seat returns the connection's seat, or nil.
func (c *Conn) Seat() *limit.Seat { return c.seat }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.lastRead.Store(int64(time.Since(c.accepted)))
		if c.metrics != nil {
			c.metrics.BytesIn.Add(float64(n))
		}
		if !c.heard.Load() {
			c.awaits.CompareAndSwap(awaitsRequest, awaitsHead)
			c.heard.Store(true)
			c.noLongerSilent()
		}
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && !c.recalled.Load() {
		c.endLate()
	}
	return n, err
}

func (c *Conn) noLongerSilent() {
	if c.listener != nil && c.silent.CompareAndSwap(true, false) {
		c.listener.setSilent(c, false)
	}
}

// endLate counts a client that did not send in time what it was to send.
func (c *Conn) endLate() {
	switch c.awaits.Load() {
	case awaitsHead:
		if c.heard.Load() {
			c.End(metrics.SlowHead)
		} else {
			c.End(metrics.Silent)
		}
	case awaitsBody:
		c.End(metrics.SlowBody)
	}
}

// LastRead returns when bytes were last read from the client.
func (c *Conn) LastRead() time.Time { return c.accepted.Add(time.Duration(c.lastRead.Load())) }

// Left reports whether the client has closed the connection or its side of it. Where the
// system does not tell, it reports false.
func (c *Conn) Left() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	left := false
	err = raw.Control(func(fd uintptr) { left = PeerLeft(int(fd)) })
	return left || errors.Is(err, net.ErrClosed)
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.metrics != nil {
		c.metrics.BytesOut.Add(float64(n))
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		c.End(metrics.SlowReader)
	}
	return n, err
}

// End counts why the daemon ends the connection. Only the first reason counts. It may be
// called on nil.
func (c *Conn) End(why metrics.Ending) {
	if c != nil && c.metrics != nil && c.ended.CompareAndSwap(false, true) {
		c.metrics.Ended(why)
	}
}

// CutOff ends the connection of a client that does not read. Any goroutine may call
// it, and on nil.
func (c *Conn) CutOff() {
	if c != nil {
		c.End(metrics.SlowReader)
		_ = c.Close()
	}
}

// SetReadDeadline implements net.Conn. After a request net/http sets it twice: for the
// wait, and when bytes of the next request are there, which may have come with the
// request before.
func (c *Conn) SetReadDeadline(t time.Time) error {
	switch {
	case c.awaits.CompareAndSwap(afterRequest, awaitsRequest):
	case c.awaits.CompareAndSwap(awaitsRequest, awaitsHead):
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

// CloseWrite closes the writing side, if the connection has one. net/http does so after
// the answer to a request that it does not read to its end.
func (c *Conn) CloseWrite() error {
	c.awaits.Store(countedByUser)
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
		c.noLongerSilent()
		if c.listener != nil {
			c.listener.open.Add(-1)
		}
	}
	return err
}

// Serving notes that a request is being served. It may be called on nil.
func (c *Conn) Serving() {
	if c != nil {
		c.awaits.Store(awaitsBody)
	}
}

// Opened notes that the connection's user counts slow clients itself from now on. It may
// be called on nil.
func (c *Conn) Opened() {
	if c != nil {
		c.awaits.Store(countedByUser)
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
		c.awaits.Store(afterRequest)
	case http.StateHijacked:
		c.awaits.Store(countedByUser)
	}
}

// Of returns the Conn that nc is, or is made of, as a tls.Conn is; else nil.
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

// SeatOf returns the seat of nc's client, or nil.
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
