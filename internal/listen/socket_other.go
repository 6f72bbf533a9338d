//go:build !linux

package listen

import (
	"io/fs"
	"syscall"
)

const userTimeout, notSentLowat, finWait2 = 0, 0, 0

func setOption(syscall.Conn, int, int) {}

// restrictTo does nothing: the mode of the socket is set once it exists.
func restrictTo(fs.FileMode) func(_, _ string, c syscall.RawConn) error { return nil }

// PeerLeft reports false: only Linux can tell without a read.
func PeerLeft(int) bool { return false }

// isReadable reports false, as PeerLeft does.
func isReadable(int) bool { return false }
