//go:build !linux

package lane

import (
	"errors"
	"syscall"
)

// On this system net/http serves everything: duplicate fails, so no loop is ever opened.
type poller struct{ event int }

const arrivals, andSpace = 0, 0

func (*loop) open() error                 { return errors.ErrUnsupported }
func (*loop) shut()                       {}
func (*poller) isOpen() bool              { return false }
func (*poller) reserve(int) error         { return errors.ErrUnsupported }
func (*poller) watch(int, uint32) error   { return errors.ErrUnsupported }
func (*poller) remove(int)                {}
func closeFD(int)                         {}
func shutWriting(int)                     {}
func duplicate(syscall.Conn) (int, error) { return 0, errors.ErrUnsupported }

func rawRead(int, []byte) (int, syscall.Errno)  { return 0, syscall.ENOTSUP }
func rawWrite(int, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }
