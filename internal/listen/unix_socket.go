package listen

import (
	"context"
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

// bindUnix listens on a Unix socket of this mode. It replaces the socket of a daemon that was
// killed. Close removes the socket.
func bindUnix(path string, mode fs.FileMode) (*net.UnixListener, error) {
	if err := removeUnused(path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: restrictTo(mode)}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil { // bind(2) applies the umask, and restrictTo may do nothing
		l.Close()
		return nil, err
	}
	return l.(*net.UnixListener), nil //nolint:forcetypeassert // it is what listens on "unix"
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
