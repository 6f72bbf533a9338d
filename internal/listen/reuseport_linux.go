package listen

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// reusePort lets the sockets of several daemons of one user listen on the same address. It is
// for net.ListenConfig.Control.
func reusePort(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return errors.Join(err, failed)
}

// steer makes the kernel give all new connections to one of the sockets on the address of c:
// the one that has listened for longest is 0. If there are fewer sockets, the kernel chooses.
// By default it spreads connections over all of them, and resets those that wait in the queue
// of a socket when that is closed.
func steer(c syscall.Conn, to uint32) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	program := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: to}}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &program[0]})
	})
	return errors.Join(err, failed)
}
