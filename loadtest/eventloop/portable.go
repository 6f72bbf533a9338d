package eventloop

import (
	"context"
	"net"
	"sync"
	"time"
)

// A portableLoop is a Loop over package net. Each connection has one goroutine,
// which connects and reads; it hands every piece to the loop and waits until it
// was taken, so that a machine sees its bytes in order and the loop alone writes.
type portableLoop struct {
	start   time.Time
	target  string
	happens chan happening  // never closed
	alive   context.Context // the loop's own lifetime, which dialling needs
	end     context.CancelFunc
	conns   sync.WaitGroup // the goroutines of connections
	live    map[*portableConn]struct{}
	in, out int64
}

// A portableConn is driven by its goroutine and owned by the loop.
type portableConn struct {
	loop    *portableLoop
	machine Machine
	net     net.Conn // nil until connected, and when closed; the loop's
	early   []byte   // what was sent before it was connected
	taken   chan struct{}
}

// A happening is what a connection's goroutine tells the loop: it connected, it
// read bytes, or it ended.
type happening struct {
	conn  *portableConn
	net   net.Conn // connected
	bytes []byte
	err   error
}

// portableTimeout bounds connecting, and each write: requests are far smaller
// than what the kernel takes at once.
const portableTimeout = 10 * time.Second

// NewPortable returns the loop that works on every system, at a higher cost.
func NewPortable(cfg Config) (Loop, error) { return newPortable(cfg), nil }

func newPortable(cfg Config) *portableLoop {
	alive, end := context.WithCancel(context.Background())
	return &portableLoop{
		alive:   alive,
		end:     end,
		start:   time.Now(),
		target:  cfg.Target.String(),
		happens: make(chan happening),
		live:    map[*portableConn]struct{}{},
	}
}

func (l *portableLoop) Now() time.Duration { return time.Since(l.start) }

func (l *portableLoop) Traffic() (in, out int64) { return l.in, l.out }

func (l *portableLoop) Usage() (Usage, bool) { return Usage{}, false }

func (l *portableLoop) Close() {
	l.end()
	for c := range l.live {
		c.release()
	}
	l.conns.Wait()
}

func (l *portableLoop) Dial(m Machine) Conn {
	c := &portableConn{loop: l, machine: m, taken: make(chan struct{}, 1)}
	l.conns.Add(1)
	go c.run()
	return c
}

func (l *portableLoop) Run(ctx context.Context, d Driver) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, done := d.Due(l.Now())
		if done {
			return nil
		}
		timer.Reset(max(next-l.Now(), 0))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case h := <-l.happens:
			h.conn.handle(h)
		}
	}
}

// run is the connection's goroutine.
func (c *portableConn) run() {
	defer c.loop.conns.Done()
	dialer := net.Dialer{Timeout: portableTimeout}
	conn, err := dialer.DialContext(c.loop.alive, "tcp", c.loop.target)
	if err != nil {
		c.tell(happening{conn: c, err: err})
		return
	}
	if !c.tell(happening{conn: c, net: conn}) {
		_ = conn.Close()
		return
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buffer)
		if n > 0 && !c.tell(happening{conn: c, bytes: buffer[:n]}) {
			return
		}
		if err != nil {
			c.tell(happening{conn: c, err: asClosed(err)})
			return
		}
	}
}

// tell reports whether the loop took h.
func (c *portableConn) tell(h happening) bool {
	select {
	case c.loop.happens <- h:
	case <-c.loop.alive.Done():
		return false
	}
	select {
	case <-c.taken:
		return true
	case <-c.loop.alive.Done():
		return h.net != nil && c.isTaken()
	}
}

func (c *portableConn) isTaken() bool {
	select {
	case <-c.taken:
		return true
	default:
		return false
	}
}

// handle is the loop's side of tell.
func (c *portableConn) handle(h happening) {
	now := c.loop.Now()
	switch {
	case h.net != nil:
		c.connected(now, h.net)
	case h.err != nil:
		c.closed(now, h.err)
	case c.net != nil:
		c.receive(now, h.bytes)
	}
	c.taken <- struct{}{}
}

func (c *portableConn) connected(now time.Duration, conn net.Conn) {
	c.net = conn
	c.loop.live[c] = struct{}{}
	c.Send(c.machine.Connected(now))
	early := c.early
	c.early = nil
	c.Send(early)
}

func (c *portableConn) receive(now time.Duration, b []byte) {
	c.loop.in += int64(len(b))
	reply, err := c.machine.Receive(now, b)
	if err != nil {
		c.closed(now, err)
		return
	}
	c.Send(reply)
}

func (c *portableConn) closed(now time.Duration, err error) {
	if _, live := c.loop.live[c]; live {
		c.release()
	} else if c.machine == nil {
		return
	}
	m := c.machine
	c.machine = nil
	m.Closed(now, err)
}

func (c *portableConn) release() {
	delete(c.loop.live, c)
	_ = c.net.Close()
	c.net = nil
}

// Send writes b.
func (c *portableConn) Send(b []byte) {
	switch {
	case len(b) == 0 || c.machine == nil:
		return
	case c.net == nil:
		c.early = append(c.early, b...)
		return
	}
	_ = c.net.SetWriteDeadline(time.Now().Add(portableTimeout))
	n, err := c.net.Write(b)
	c.loop.out += int64(n)
	if err != nil {
		c.closed(c.loop.Now(), err)
	}
}
