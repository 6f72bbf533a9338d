package listen

import "golang.org/x/sys/unix"

// PeerLeft reports whether the peer of a socket has closed the connection, or its side
// of it, even if bytes that it sent before are still unread.
func PeerLeft(fd int) bool {
	sockets := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(sockets, 0)
	return err == nil && n > 0
}
