package listen

import (
	"errors"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// Options of TCP sockets (tcp(7)). Connections inherit them from their listener.
const (
	// userTimeout is how long the kernel waits for a client to acknowledge or read bytes,
	// in milliseconds. Then it ends the connection. By default it sends to a client that
	// vanished again and again, for a quarter of an hour.
	userTimeout = unix.TCP_USER_TIMEOUT

	// notSentLowat is how many bytes the kernel buffers beyond those in flight. By default
	// it buffers up to 4 MB for a client that does not read, outside every budget of the
	// daemon: a thousand such clients took 1.7 GB. The option does not bound the bytes in
	// flight, so it costs no throughput.
	notSentLowat = unix.TCP_NOTSENT_LOWAT

	// finWait2 is how long a closed connection waits for its client to close too. With -1
	// the kernel drops the connection once the client has all bytes.
	finWait2 = unix.TCP_LINGER2
)

// setOption sets an option of a TCP socket. If that fails, the default stays.
func setOption(c syscall.Conn, option, value int) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value) })
	}
}

// restrictTo makes bind(2) create a Unix socket with at most this mode, so that nobody else can
// connect before the mode is set. It is for net.ListenConfig.Control.
func restrictTo(mode fs.FileMode) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), uint32(mode)) })
		return errors.Join(err, failed)
	}
}

// PeerLeft reports whether the peer of a socket has closed the connection, or its side
// of it, even if bytes that it sent before are still unread.
func PeerLeft(fd int) bool { return poll(fd, unix.POLLRDHUP) }

// isReadable reports whether a read of a socket returns at once: the peer has sent bytes, or
// left.
func isReadable(fd int) bool { return poll(fd, unix.POLLIN) }

func poll(fd int, events int16) bool {
	sockets := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(sockets, 0)
	return err == nil && n > 0
}
