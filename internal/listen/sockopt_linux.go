package listen

import (
	"net"
	"syscall"
	"time"
)

// TCP options that package syscall does not name.
const (
	tcpUserTimeout  = 0x12 // linux/tcp.h, TCP_USER_TIMEOUT
	tcpNotSentLowat = 0x19 // linux/tcp.h, TCP_NOTSENT_LOWAT
)

// limitUnacked has the kernel end a connection of the listener whose client has not
// acknowledged bytes, or has not read, for that long (tcp(7), TCP_USER_TIMEOUT). By
// default it retransmits to a client that vanished for a quarter of an hour.
// Connections inherit the option.
func limitUnacked(raw syscall.RawConn, d time.Duration) {
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds())) // else the default
	})
}

// limitUnsent has the kernel buffer at most that many bytes beyond the bytes in flight
// (tcp(7), TCP_NOTSENT_LOWAT). By default it takes up to 4 MB for a client that does
// not read, outside every budget of the daemon: a thousand such clients took 1.7 GB.
// Bytes in flight are not bounded by it, so it costs no throughput at any distance.
// Connections inherit the option.
func limitUnsent(raw syscall.RawConn, bytes int) {
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowat, bytes) // else the default
	})
}

// skipFinWait2 has the kernel drop a closed connection once its client has all bytes.
// In FIN-WAIT-2 it would wait for a client that does not close.
func skipFinWait2(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_LINGER2, -1)
	})
}
