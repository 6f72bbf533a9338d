package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// UnixPrefix begins the address of a Unix socket: unix:/run/pubsubd/admin.sock.
const UnixPrefix = "unix:"

// Modes of a Unix socket. Root can always connect.
const (
	OwnerOnly     fs.FileMode = 0o600
	OwnerAndGroup fs.FileMode = 0o660
)

// A boundUnix is a Unix socket that this process has made.
type boundUnix struct {
	*net.UnixListener
	file fs.FileInfo // of the socket
}

// Close implements net.Listener. It removes the socket, unless another process has replaced it:
// the next daemon may have bound the path already. The kernel does not give the inode to another
// file before the listener closes.
func (l *boundUnix) Close() error {
	path := l.Addr().String()
	if now, err := os.Lstat(path); err == nil && os.SameFile(now, l.file) {
		_ = os.Remove(path) // what is left, the next daemon replaces
	}
	return l.UnixListener.Close()
}

// bindUnix listens on a Unix socket of this mode. It replaces the socket of a daemon that was
// killed.
func bindUnix(path string, mode fs.FileMode) (*boundUnix, error) {
	if err := removeUnused(path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: restrictTo(mode)}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	b := &boundUnix{UnixListener: l.(*net.UnixListener)} //nolint:forcetypeassert // it is what listens on "unix"
	if err = os.Chmod(path, mode); err == nil {          // bind(2) applies the umask, and restrictTo may do nothing
		b.file, err = os.Lstat(path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	b.SetUnlinkOnClose(false) // Close removes it
	return b, nil
}

// removeUnused removes the socket at path, if there is one and no process listens on it.
func removeUnused(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return nil // there is none, or Listen says what is wrong
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket: remove it", path)
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
		return fmt.Errorf("%s is in use by another process", path)
	}
	return os.Remove(path)
}
