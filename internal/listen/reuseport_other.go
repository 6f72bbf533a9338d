//go:build !linux

package listen

import (
	"errors"
	"syscall"
)

var errNoReusePort = errors.New("listen.reuseport needs Linux")

func reusePort(string, string, syscall.RawConn) error { return errNoReusePort }

func steer(syscall.Conn, uint32) error { return errNoReusePort }
