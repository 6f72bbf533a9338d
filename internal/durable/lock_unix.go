//go:build unix && !aix && !solaris

package durable

import (
	"errors"
	"os"
	"syscall"
)

// noFollow makes an open of a symbolic link fail.
const noFollow = syscall.O_NOFOLLOW

// lock locks f until it is closed. Without wait it returns ErrLocked at once.
func lock(f *os.File, wait bool) error {
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		err := syscall.Flock(int(f.Fd()), how)
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrLocked
		case !errors.Is(err, syscall.EINTR):
			return err
		}
	}
}

// keepOwner gives f the owner of another file: an administrator may change the file of a
// daemon that runs as another user.
func keepOwner(f *os.File, of os.FileInfo) error {
	own, err := f.Stat()
	if err != nil {
		return err
	}
	old, isUnix := of.Sys().(*syscall.Stat_t)
	now, _ := own.Sys().(*syscall.Stat_t)
	if !isUnix || old.Uid == now.Uid && old.Gid == now.Gid {
		return nil
	}
	return f.Chown(int(old.Uid), int(old.Gid))
}
