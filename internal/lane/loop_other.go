//go:build !linux

package lane

import (
	"errors"
	"syscall"
)

// supported: net/http serves everything here, so no loop is ever opened.
const supported = false

type poller struct{}

const arrivals, andSpace = 0, 0

var errUnsupported = errors.New("the lane needs Linux")

func (*loop) open() error                    { return errUnsupported }
func (*loop) shut()                          {}
func (*poller) isOpen() bool                 { return false }
func (*poller) reserve(int) error            { return errUnsupported }
func (*poller) watch(int, uint32) error      { return errUnsupported }
func (*poller) remove(int)                   {}
func (*poller) wake()                        {}
func closeFD(int)                            {}
func shutWriting(int)                        {}
func duplicate(syscall.RawConn) (int, error) { return 0, errUnsupported }

func rawRead(int, []byte) (int, syscall.Errno)  { return 0, syscall.ENOTSUP }
func rawWrite(int, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }
