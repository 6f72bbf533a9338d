//go:build unix && !aix && !solaris

package daemon

import (
	"errors"
	"os"
	"syscall"
)

// lock locks f until it is closed, and does not wait for it.
func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return err
}
