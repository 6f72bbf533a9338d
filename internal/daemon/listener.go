package daemon

import (
	"net"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
)

// A countingListener counts the bytes on the connections it accepts.
type countingListener struct {
	net.Listener
	in, out prometheus.Counter
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	counting := countingConn{Conn: c, in: l.in, out: l.out}
	if s, ok := c.(syscall.Conn); ok {
		return &countingSocket{countingConn: counting, Conn: s}, nil
	}
	return &counting, nil
}

// A countingSocket has a descriptor, too. Who reads and writes by that has to count.
type countingSocket struct {
	countingConn
	syscall.Conn
}

type countingConn struct {
	net.Conn
	in, out prometheus.Counter
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.Add(float64(n))
	return n, err
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.out.Add(float64(n))
	return n, err
}
