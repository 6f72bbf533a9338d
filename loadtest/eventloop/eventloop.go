// Package eventloop drives thousands of connections and one schedule from a
// single goroutine.
//
// On Linux it is an epoll loop on a locked thread with raw sockets, because a
// goroutine per connection would cost the machine that is measured about as
// much as the server does. Elsewhere it is a goroutine per connection that
// hands what it reads to the loop. Both drive the same Machines.
package eventloop

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
)

// A Machine is what one connection does with the bytes that arrive. The loop
// calls it from its one goroutine. Bytes that a method returns are sent at once;
// they need not stay valid longer than until the next call into any Machine.
type Machine interface {
	// Connected is called once, when the connection is there.
	Connected(now time.Duration) []byte
	// Receive is given bytes (never none) that arrived at now; they are valid until
	// it returns. An error closes the connection.
	Receive(now time.Duration, b []byte) ([]byte, error)
	// Closed is called once, if connecting failed or the connection ended, but not
	// for those that Close ends.
	Closed(now time.Duration, err error)
}

// A Driver is the schedule that a loop runs.
type Driver interface {
	// Due does everything that is due at now, and returns when something will be due
	// next. It may be called earlier than that. done ends the loop.
	Due(now time.Duration) (next time.Duration, done bool)
}

// A Loop drives connections. Its methods but Now must be called before Run, or
// from within the methods of Machine and Driver that it calls.
type Loop interface {
	// Dial begins to connect m. What goes wrong is told to m.Closed, perhaps before
	// Dial returns.
	Dial(m Machine) Conn
	// Run drives d and all machines until d is done or ctx is.
	Run(ctx context.Context, d Driver) error
	// Now returns the time since the loop was made, by a monotonic clock.
	Now() time.Duration
	// Traffic returns how many bytes were received and sent.
	Traffic() (in, out int64)
	// Usage returns what the thread that runs the loop has used, and whether that can
	// be told; call it only while Run runs, on its goroutine.
	Usage() (Usage, bool)
	// Close closes every connection. The loop cannot be used any more.
	Close()
}

// Usage is a thread's time since it began.
type Usage struct {
	CPU    time.Duration // on a core
	Waited time.Duration // ready to go on, but for a core
}

// A Conn is one connection of a Loop.
type Conn interface {
	// Send sends b, at once as far as the kernel takes it. b is not kept.
	Send(b []byte)
}

// Config says where a loop's connections go.
type Config struct {
	// Target is the server's address. It must be resolved.
	Target *net.TCPAddr
}

// ErrServerClosed is why a Machine is Closed when the server ended the
// connection in order.
var ErrServerClosed = errors.New("the server closed the connection")

// readBuffer is enough for a batch answer; what is longer takes more reads.
const readBuffer = 256 << 10

func asClosed(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrServerClosed
	}
	return err
}
