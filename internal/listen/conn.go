// Package listen accepts connections: listeners, TLS, socket options, refusals. Each
// client's connection counts against the limits, and counts its bytes. If the daemon ends
// it because of a slow client, it counts the reason.
package listen

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Conn is one connection. Close ends its counting against the limits. Code that
// reads and writes the descriptor itself must count the bytes and share the
// limit.Connection.
//
// net/http ends slow clients by deadlines, and does not report which deadline passed. So
// a Conn tracks what the client has to send next, by ConnState and Opened.
type Conn struct {
	net.Conn // immutable, like the next four
	counted  *limit.Connection
	metrics  *metrics.Metrics // nil: do not count this connection, because it is an operator's
	listener *Listener        // that accepted it; nil: none
	accepted time.Time

	Strikes uint8  // the lane's: how often in a row it gave the connection back early; immutable
	ahead   []byte // what Read returns first; owned by the goroutine that reads

	lastRead atomic.Int64 // when the client last sent bytes, in nanoseconds after accepted; 0: never; or dismissed
	awaits   atomic.Int32 // an awaited
	heard    atomic.Bool  // the client has sent bytes since the connection, or the request, began
	served   atomic.Bool  // net/http has called a handler
	recalled atomic.Bool  // the read deadline was in the past when it was set: it only makes a Read return
	isAhead  atomic.Bool  // ahead has bytes
	ended    atomic.Bool  // end was called
	closed   atomic.Bool
	expiry   atomic.Pointer[time.Timer] // closes the connection when the client's certificate expires; nil: never
}

// An Owner implements memory.Owner for the bytes that the daemon holds for a client.
type Owner struct {
	Who  limit.Who // the bytes count against it
	Conn *Conn     // may be nil
}

// Client implements memory.Owner.
func (o *Owner) Client() *memory.Client { return o.Who.Client() }

// CutOff implements memory.Owner. It ends all answers on a connection of HTTP/2.
func (o *Owner) CutOff() { o.Conn.CutOff() }

// awaited is what a client has to send next.
type awaited = int32

const (
	awaitsHead    awaited = iota // the head of a request, a handshake, or the first item on a TCP connection
	afterRequest                 // a request has ended; net/http is about to wait for the next
	awaitsRequest                // the next request, whenever the client likes
	awaitsBody                   // the body of the request that is being served
	countedByUser                // the connection's user counts slow clients itself
)

// New returns nc as the connection of a client, from which the bytes ahead, the begin of a
// request, were already read and counted. counted may be nil.
func New(nc net.Conn, counted *limit.Connection, m *metrics.Metrics, ahead []byte) *Conn {
	c := &Conn{Conn: nc, counted: counted, metrics: m, accepted: time.Now(), ahead: ahead}
	c.heard.Store(len(ahead) > 0)
	c.isAhead.Store(len(ahead) > 0)
	return c
}

// IsAhead reports whether Read has not returned yet all bytes that were read before New.
func (c *Conn) IsAhead() bool { return c.isAhead.Load() }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(b, c.ahead)
		if c.ahead = c.ahead[n:]; len(c.ahead) == 0 {
			c.ahead = nil
			c.isAhead.Store(false)
		}
		return n, nil
	}
	n, err := c.Conn.Read(b)
	isLate := err != nil && errors.Is(err, os.ErrDeadlineExceeded) && !c.recalled.Load()
	if isLate && c.askSystem(isReadable) && c.Conn.SetReadDeadline(time.Now().Add(unreadPause)) == nil {
		// Bytes that a busy daemon has not read before the deadline came in time.
		n, err = c.Conn.Read(b)
		isLate = errors.Is(err, os.ErrDeadlineExceeded) && !c.recalled.Load()
	}
	if n > 0 {
		if c.lastRead.Swap(max(1, int64(time.Since(c.accepted)))) == dismissed {
			c.lastRead.Store(dismissed)
			return 0, io.EOF
		}
		if c.metrics != nil {
			c.metrics.BytesIn.Add(float64(n))
		}
		if !c.heard.Load() {
			c.awaits.CompareAndSwap(awaitsRequest, awaitsHead)
			c.heard.Store(true)
		}
	}
	if isLate {
		c.endLate()
	}
	return n, err
}

// unreadPause is how long a read may take when the deadline has passed but the bytes are here.
const unreadPause = time.Second

// endLate counts a client that did not send in time what the daemon waits for.
func (c *Conn) endLate() {
	switch c.awaits.Load() {
	case awaitsHead:
		if c.heard.Load() {
			c.end(metrics.SlowHead)
		} else {
			c.end(metrics.Silent)
			c.dismiss(problem.New(wire.CodeOverloaded, "send the request as soon as the connection is open", "no request came in time").Retry(time.Second))
		}
	case awaitsBody:
		c.end(metrics.SlowBody)
	}
}

// LastRead returns when the client last sent bytes.
func (c *Conn) LastRead() time.Time { return c.accepted.Add(time.Duration(c.lastRead.Load())) }

// Left reports whether the client has closed the connection or its side of it. It reports
// false where the system cannot tell.
func (c *Conn) Left() bool { return c.askSystem(PeerLeft) }

// askSystem asks the system about the descriptor. It returns true if the connection is closed.
func (c *Conn) askSystem(is func(fd int) bool) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	yes := false
	err = raw.Control(func(fd uintptr) { yes = is(int(fd)) })
	return yes || errors.Is(err, net.ErrClosed)
}

// dismissed is lastRead of a connection that dismiss has closed.
const dismissed = -1

// dismiss closes a connection on which nothing was read. The client may be sending a request
// meanwhile: it gets the reason as the answer, and nobody serves the request.
func (c *Conn) dismiss(why *wire.Problem) {
	if !c.lastRead.CompareAndSwap(0, dismissed) {
		return
	}
	if c.listener != nil {
		if reason := c.listener.refusal(why); len(reason) > 0 {
			_ = c.SetDeadline(time.Now().Add(refusalTimeout))
			_, _ = c.Conn.Write(reason)
		}
	}
	_ = c.Close()
}

// requestPause is how long the daemon waits for more bytes of a first request before it stops.
// http.Server.Shutdown waits as long for a new connection.
const requestPause = 5 * time.Second

// isSending reports whether the rest of the first request may soon come, or has come and is not
// read yet. An HTTP/2 connection without a request needs no wait: net/http sends GOAWAY, and the
// client knows that it can repeat a request elsewhere (RFC 9113, section 6.8).
func (c *Conn) isSending() bool {
	if c.awaits.Load() == afterRequest { // HTTP/1 has no fresh connection in this state
		return false
	}
	return c.askSystem(isReadable) || time.Since(c.LastRead()) < requestPause
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.metrics != nil {
		c.metrics.BytesOut.Add(float64(n))
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		c.end(metrics.SlowReader)
	}
	return n, err
}

// end counts the reason why the daemon ends the connection. Only the first reason counts.
func (c *Conn) end(why metrics.Ending) {
	if c.metrics != nil && c.ended.CompareAndSwap(false, true) {
		c.metrics.Ended(why)
	}
}

// CutOff closes the connection of a client that does not read. Any goroutine may call it,
// also on nil.
func (c *Conn) CutOff() {
	if c != nil {
		c.end(metrics.SlowReader)
		_ = c.Close()
	}
}

// SetReadDeadline implements net.Conn. After a request net/http sets the deadline twice:
// when it begins to wait, and when it has bytes of the next request. These may have come
// together with the last request.
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

// CloseWrite closes the writing side, if the connection supports that. net/http calls it
// after the answer to a request whose body it does not read to the end.
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
		c.counted.Leave()
		c.stopExpiry()
		c.removeFresh()
		if c.listener != nil {
			c.listener.open.Add(-1)
		}
	}
	return err
}

// removeFresh tells the listener that it need not wait for a first request.
func (c *Conn) removeFresh() {
	if c.listener != nil {
		c.listener.fresh.Delete(c)
	}
}

// endAt closes the connection at a time. It is called for each handshake, of which a connection
// has one.
func (c *Conn) endAt(t time.Time) {
	c.expiry.Store(time.AfterFunc(time.Until(t), func() { _ = c.Close() }))
	if c.closed.Load() {
		c.stopExpiry()
	}
}

func (c *Conn) stopExpiry() {
	if timer := c.expiry.Load(); timer != nil {
		timer.Stop()
	}
}

// Opened notes that the connection's user counts slow clients from now on. It may be
// called on nil.
func (c *Conn) Opened() {
	if c != nil {
		c.awaits.Store(countedByUser)
		c.removeFresh()
	}
}

// ConnState is for http.Server.ConnState.
func ConnState(nc net.Conn, state http.ConnState) {
	c := Of(nc)
	if c == nil {
		return
	}
	switch state {
	case http.StateActive: // net/http has read the head
		c.awaits.Store(awaitsBody)
	case http.StateIdle:
		c.heard.Store(false)
		c.awaits.Store(afterRequest)
	case http.StateHijacked:
		c.awaits.Store(countedByUser)
	}
}

// Serving notes for each request that net/http has called a handler, and calls h. The server
// needs NewContext as its ConnContext.
func Serving(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := Of(FromContext(r.Context())); c != nil && !c.served.Load() {
			c.served.Store(true)
			c.removeFresh()
		}
		h.ServeHTTP(w, r)
	})
}

// Of returns the Conn that nc is, or that nc wraps, as a tls.Conn does. It returns nil if
// there is none.
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

// Counted returns nc as the limits count it, or nil.
func Counted(nc net.Conn) *limit.Connection {
	if c := Of(nc); c != nil {
		return c.counted
	}
	return nil
}

// key is the key of the connection in a context.
type key struct{}

// NewContext returns a context for requests on nc.
func NewContext(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, key{}, nc)
}

// FromContext returns the connection that NewContext was given, or nil.
func FromContext(ctx context.Context) net.Conn {
	nc, _ := ctx.Value(key{}).(net.Conn)
	return nc
}
