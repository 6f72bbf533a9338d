package listen

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"

	"github.com/coreos/go-systemd/v22/activation"
)

// Sockets are listening sockets that exist before the daemon, by the names of their settings
// without the prefix "listen.". A nil map is empty.
type Sockets map[string]socket

// Inherit returns the sockets that the service manager passes to this process
// (sd_listen_fds(3)). The manager keeps them open: while no daemon runs, connections wait in
// their queues. A second call returns none.
func Inherit() (Sockets, error) {
	sockets := make(Sockets)
	for _, f := range activation.Files(true) {
		err := sockets.inherit(f.Name(), f)
		_ = f.Close() // the listener has a descriptor of its own
		if err != nil {
			sockets.Close()
			return nil, fmt.Errorf("the service manager passes a socket named %q: %w", f.Name(), err)
		}
	}
	return sockets, nil
}

// BindBeside binds the address of a setting beside the socket of another daemon, or of none. The
// other daemon gets all connections until its listener calls HandOver.
func (s Sockets) BindBeside(name, address string) error {
	l, err := listenTCP(address, reusePort)
	if err == nil {
		s[name] = besideTCP{l}
		err = steer(l, 0)
	}
	if err != nil {
		return fmt.Errorf("listen.%s: %w (listen.reuseport lets daemons of one user share the address, if all of them set it)", name, err)
	}
	return nil
}

func (s Sockets) inherit(name string, f *os.File) error {
	if s[name] != nil {
		return errors.New("it is the second of this name; write one ListenStream= in each socket unit")
	}
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("%w; want a socket of ListenStream=", err)
	}
	switch l := l.(type) {
	case *net.TCPListener:
		s[name] = inheritedTCP{l}
	case *net.UnixListener:
		s[name] = inheritedUnix{l}
	default:
		return errors.Join(fmt.Errorf("it is of type %s; want a socket of ListenStream=", l.Addr().Network()), l.Close())
	}
	return nil
}

// Unused returns an error if a socket is left that no listener has taken.
func (s Sockets) Unused() error {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		return fmt.Errorf("the service manager passes a socket named %q (%s), which no listener uses: "+
			"set FileDescriptorName= to public, admin, tcp or acme, and the setting listen.tcp or listen.acme if it is one of these", name, s[name].Addr())
	}
	return nil
}

// Close closes the sockets that no listener has taken.
func (s Sockets) Close() {
	for _, l := range s {
		_ = l.Close()
	}
}

// An inheritedTCP is a TCP socket that the service manager keeps.
type inheritedTCP struct{ *net.TCPListener }

// Accept implements net.Listener. Go gives connections of other listeners these options.
func (l inheritedTCP) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	_ = c.SetKeepAliveConfig(keepAlive) // without it the connection keeps the defaults
	return c, nil
}

// An inheritedUnix is a Unix socket that the service manager keeps.
type inheritedUnix struct{ *net.UnixListener }

// A besideTCP is a TCP socket that may share its address with that of another daemon.
type besideTCP struct{ *net.TCPListener }

// check returns why an inherited socket must not be used with these settings. The settings
// decide whether clients need authorisation, so the socket must not be elsewhere.
func check(s socket, cfg Config) error {
	switch at := s.Addr().(type) {
	case *net.UnixAddr:
		if UnixPrefix+at.Name != cfg.Address {
			return errElsewhere(UnixPrefix+at.Name, cfg.Address)
		}
		info, err := os.Stat(at.Name)
		if err == nil && info.Mode().Perm()&^cfg.SocketMode != 0 {
			return fmt.Errorf("the mode of the service manager's socket is %04o: set SocketMode=%04o in its unit", info.Mode().Perm(), cfg.SocketMode)
		}
		return err
	case *net.TCPAddr:
		if want, err := net.ResolveTCPAddr("tcp", cfg.Address); err == nil && isAt(at, want) {
			return nil
		}
	}
	return errElsewhere(s.Addr().String(), cfg.Address)
}

// isAt reports whether a socket listens where a setting wants it. Port 0 wants any port.
func isAt(got, want *net.TCPAddr) bool {
	isEverywhere := func(ip net.IP) bool { return ip == nil || ip.IsUnspecified() }
	return (want.Port == 0 || want.Port == got.Port) && (want.IP.Equal(got.IP) || isEverywhere(want.IP) && isEverywhere(got.IP))
}

func errElsewhere(is, want string) error {
	return fmt.Errorf("the service manager's socket is at %s, but the setting is %s: give both the same address", is, want)
}
