//go:build unix && !aix && !solaris

package store

import (
	"errors"
	"os"
	"syscall"
)

// lock locks f until it is closed, or returns errLocked at once.
func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return err
}
