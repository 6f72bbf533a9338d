//go:build unix

package main

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// leastBuffer is raised by the kernel to the least that it allows.
const leastBuffer = 1

// tinyBuffer is a net.Dialer's Control. It has to come before the connection,
// since the window is told with the first packet.
func tinyBuffer(_, _ string, c syscall.RawConn) error {
	var fault error
	err := c.Control(func(fd uintptr) {
		fault = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, leastBuffer)
	})
	return errors.Join(err, fault)
}
