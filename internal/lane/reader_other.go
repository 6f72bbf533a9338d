//go:build !linux

package lane

import (
	"errors"
	"syscall"
)

const supported = false

// A reader is not needed where the lane is not supported.
type reader struct{}

var errUnsupported = errors.New("the lane needs Linux")

func (*reader) join(*conn) error             { return errUnsupported }
func (*reader) awaitSpace(*conn) error       { return errUnsupported }
func (*reader) leave(*conn)                  {}
func (*reader) close()                       {}
func closeFD(int)                            {}
func shutWriting(int)                        {}
func duplicate(syscall.RawConn) (int, error) { return 0, errUnsupported }

func rawRead(int, []byte) (int, syscall.Errno)  { return 0, syscall.ENOTSUP }
func rawWrite(int, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }
