package daemon

import (
	"net"
	"syscall"
	"time"
)

// TCP options that package syscall does not name.
const (
	tcpUserTimeout = 0x12 // linux/tcp.h
	tcpLinger2     = syscall.TCP_LINGER2
	tcpNotSentLow  = 0x19 // linux/tcp.h, TCP_NOTSENT_LOWAT
)

// giveUpAfter has the kernel give a connection of the listener up when nothing that
// was sent was acknowledged for so long, or its client has not read for so long
// (tcp(7), TCP_USER_TIMEOUT). Without it, what a client that vanished was sent is sent
// again for a quarter of an hour. Connections inherit it.
func giveUpAfter(raw syscall.RawConn, d time.Duration) {
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds())) // else as ever
	})
}

// keepUnsent has the kernel take no more of what is written than what it can send, and
// so many bytes (tcp(7), TCP_NOTSENT_LOWAT): for a client that does not read it would
// take up to 4 MB, memory of the machine that no budget of ours knows; a thousand such
// clients had 1.7 GB. What is on its way to a client is not bounded by it, so it costs
// no throughput however far that is. Connections inherit it.
func keepUnsent(raw syscall.RawConn, bytes int) {
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLow, bytes) // else as ever
	})
}

// forgetSoon has the kernel keep nothing of a connection that is closed, once its
// client has all that was written: no FIN-WAIT-2, in which it would wait for a client
// that does not close.
func forgetSoon(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpLinger2, -1)
	})
}
