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

// ownerOnly lets only the daemon's user, and root, connect to a Unix socket.
const ownerOnly fs.FileMode = 0o600

// bindUnix listens on a Unix socket that only the daemon's user can connect to. It replaces
// the socket of a daemon that was killed. Close removes the socket.
func bindUnix(path string) (*net.UnixListener, error) {
	if err := removeUnused(path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: restrict}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, ownerOnly); err != nil { // where restrict does nothing
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
