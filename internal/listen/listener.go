package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Config configures a Listener. All fields are required unless they say otherwise.
type Config struct {
	Name    string // of the setting, without the prefix "listen."; for the log and errors
	Address string // host:port, or UnixPrefix and the path of a socket

	// SocketMode is the mode of a Unix socket: who can connect.
	SocketMode fs.FileMode

	// Sockets has the socket to use instead of a new one, by Name. Listen removes it there,
	// and fails if its address is not Address. May be nil.
	Sockets Sockets

	// Limiter counts each connection, or refuses it. nil: the listener is for
	// operators. Then only MaxConnections bounds the connections, and the metrics of
	// clients do not count them.
	Limiter        *limit.Limiter
	MaxConnections int

	Certificate *Certificate // nil: no TLS
	ALPN        []string     // protocols within TLS (RFC 7301), the preferred one first; may be empty

	// Refusal returns the bytes that a refused client gets before its connection closes.
	// nil: it gets none. With TLS it never gets any.
	Refusal func(*wire.Problem) []byte

	WriteTimeout time.Duration // how long a write to a client may take; a reload does not change it here
	Spare        *Spare
	Metrics      *metrics.Metrics
	Log          *zap.Logger
}

// A Listener accepts connections within the limits and adds TLS. It refuses connections
// without a goroutine and without waiting. It keeps accepting when the system runs short
// of descriptors or memory, and never spins. One goroutine calls Accept. The other
// methods may be called concurrently.
type Listener struct {
	cfg    Config // immutable, like the next two
	socket socket
	tls    *tls.Config  // nil: none
	open   atomic.Int64 // connections
	fresh  sync.Map     // of *Conn: open connections whose first request no handler has yet; see AwaitRequests
	once   sync.Once
	closed chan struct{}

	accepting sync.Mutex // held by Accept, so that Close can wait for it

	// Owned by Accept.
	failing, full rate.Sometimes // limit how often the same warning is logged
}

// A socket is a *net.TCPListener or a *net.UnixListener, or one in a type of this package.
type socket interface {
	net.Listener
	SetDeadline(t time.Time) error
}

// LogEvery is how often a repeated event is logged.
const LogEvery = 10 * time.Second

// Listen binds cfg.Address, or takes the socket of cfg.Sockets.
func Listen(cfg Config) (*Listener, error) {
	socket, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("listen.%s: %w (--listen-%[1]s chooses another address)", cfg.Name, err)
	}
	l := &Listener{cfg: cfg, socket: socket, closed: make(chan struct{})}
	l.failing.Interval, l.full.Interval = LogEvery, LogEvery
	if cfg.Certificate != nil {
		l.tls = cfg.Certificate.config(cfg.ALPN)
	}
	return l, nil
}

// keepAlive finds clients that vanished while the daemon sends them nothing.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// unackedMargin is how much longer than the write timeout the kernel waits for a client
// to acknowledge bytes. The daemon itself ends clients that do not read, but it checks
// some connections only every five seconds.
const unackedMargin = 15 * time.Second

// unsentBytes is how much the kernel buffers for a client beyond the bytes in flight.
// The daemon keeps the rest, which it bounds and counts. With 128 KiB, 5,000 polls that
// nobody reads took 1.45 GB, where the kernel slows all connections down (tcp_mem).
const unsentBytes = 32 << 10

// open returns the socket of cfg.Sockets, or binds one.
func open(cfg Config) (socket, error) {
	var err error
	s := cfg.Sockets[cfg.Name]
	delete(cfg.Sockets, cfg.Name)
	path, isUnix := strings.CutPrefix(cfg.Address, UnixPrefix)
	switch {
	case s != nil:
		if err := check(s, cfg); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	case isUnix:
		s, err = bindUnix(path, cfg.SocketMode)
	default:
		s, err = listenTCP(cfg.Address, nil)
	}
	if err != nil {
		return nil, err
	}
	if tcp, ok := s.(syscall.Conn); ok { // its connections inherit these options; on a Unix socket they do nothing
		setOption(tcp, userTimeout, int((cfg.WriteTimeout + unackedMargin).Milliseconds()))
		setOption(tcp, notSentLowat, unsentBytes)
	}
	return s, nil
}

// listenTCP binds a TCP socket. control may be nil; see net.ListenConfig.
func listenTCP(address string, control func(network, address string, c syscall.RawConn) error) (*net.TCPListener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive, Control: control}
	lc.SetMultipathTCP(false) // Go's default for listeners, but its connections do not inherit socket options on Linux
	l, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil //nolint:forcetypeassert // it is what listens on "tcp"
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.socket.Addr() }

// Address returns host:port, or UnixPrefix and the path of the socket.
func (l *Listener) Address() string {
	if at := l.Addr(); at.Network() != "unix" {
		return at.String()
	}
	return UnixPrefix + l.Addr().String()
}

// Close implements net.Listener. When it returns, Accept returns no further connection. It may
// be called again.
func (l *Listener) Close() (err error) {
	l.once.Do(func() {
		close(l.closed)
		err = l.socket.Close()
		l.accepting.Lock()
		defer l.accepting.Unlock()
	})
	return err
}

// IsInherited reports whether the service manager keeps the socket. New connections wait in its
// queue while nobody accepts them.
func (l *Listener) IsInherited() bool {
	switch l.socket.(type) {
	case inheritedTCP, inheritedUnix:
		return true
	}
	return false
}

// HandOver leaves new connections to the next daemon. If the service manager keeps the socket,
// the listener closes, and they wait in the queue. If another daemon listens beside this one,
// the kernel gives them to that. Otherwise nothing changes.
func (l *Listener) HandOver() {
	var err error
	switch s := l.socket.(type) {
	case inheritedTCP, inheritedUnix:
		err = l.Close()
	case besideTCP:
		err = steer(s, 1)
	}
	if err != nil {
		l.cfg.Log.Warn("new connections stay with this daemon while it drains", zap.String("listener", l.cfg.Name), zap.Error(err))
	}
}

// AwaitRequests waits until a handler has the first request of each connection. Call it after
// Close and before http.Server.Shutdown: from then on the server drops each request that it
// reads. After grace, AwaitRequests closes the connections on which no byte came, with why as the
// answer to a request that comes later. Then it waits for the rest of the requests that have begun
// to arrive, at most requestPause between their bytes. The server's timeouts bound the whole
// request. AwaitRequests returns early if ctx ends.
func (l *Listener) AwaitRequests(ctx context.Context, grace time.Duration, why *wire.Problem) {
	first, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	l.awaitNone(first, func(*Conn) bool { return true })
	l.fresh.Range(func(key, _ any) bool {
		c := key.(*Conn)
		if c.lastRead.Load() == 0 && !c.askSystem(isReadable) { // bytes that nobody has read yet count too
			c.dismiss(why)
		}
		return true
	})
	l.awaitNone(ctx, (*Conn).isSending)
}

// awaitNone waits until no fresh connection is of this kind, or ctx ends.
func (l *Listener) awaitNone(ctx context.Context, is func(*Conn) bool) {
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for l.hasFresh(is) && ctx.Err() == nil {
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

func (l *Listener) hasFresh(is func(*Conn) bool) (has bool) {
	l.fresh.Range(func(key, _ any) bool {
		has = is(key.(*Conn))
		return !has
	})
	return has
}

// Accept implements net.Listener. It fails when the listener is closed or broken.
func (l *Listener) Accept() (net.Conn, error) {
	l.accepting.Lock()
	defer l.accepting.Unlock()
	for {
		nc, err := l.accept()
		if err != nil {
			return nil, err
		}
		c, err := l.admit(nc)
		if err != nil {
			l.refuse(nc, err)
			continue
		}
		l.fresh.Store(c, nil)
		if l.tls != nil {
			return tls.Server(c, l.tls), nil
		}
		return c, nil
	}
}

// admit counts the connection against the limits. An error refuses it.
func (l *Listener) admit(nc net.Conn) (*Conn, error) {
	c := &Conn{Conn: nc, listener: l, accepted: time.Now()}
	if l.cfg.Limiter != nil {
		counted, err := l.cfg.Limiter.Connect(remote(nc))
		if err != nil {
			return nil, err
		}
		c.counted, c.metrics = counted, l.cfg.Metrics
	} else if l.open.Load() >= int64(l.cfg.MaxConnections) {
		return nil, errFull
	}
	l.open.Add(1)
	return c, nil
}

// remote returns the address that the limits count a connection for. A client of a Unix socket
// counts as one of loopback, so trusted_proxies can name it.
func remote(nc net.Conn) netip.Addr {
	switch at := nc.RemoteAddr().(type) {
	case *net.TCPAddr:
		return at.AddrPort().Addr()
	case *net.UnixAddr:
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.Addr{} // the client has left
}

var errFull = errors.New("the listener has its maximum of connections")

// Bounds of the pause between two attempts to accept, as in net/http.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// accept returns the next connection. While the process has no free descriptor, it
// refuses connections with the help of the spare one. A connection that stays in the
// kernel's queue would wake the listener again and again, and its client would get no
// answer.
func (l *Listener) accept() (net.Conn, error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		c, err := l.socket.Accept()
		for err != nil && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && l.turnAway() {
			c, err = l.socket.Accept()
		}
		if err == nil {
			return c, nil
		}
		if errno, ok := errors.AsType[syscall.Errno](err); !ok || !slices.Contains(temporary, errno) {
			return nil, err
		}
		l.logFailing(err)
		select {
		case <-time.After(pause):
		case <-l.closed:
		}
	}
}

func (l *Listener) logFailing(err error) {
	l.failing.Do(func() {
		l.cfg.Log.Warn("connections cannot be accepted", zap.String("listener", l.cfg.Name), zap.Error(err))
	})
}

// temporary are the errors of accept that concern only one connection, or a resource that the
// system lacks for now. accept(2) says to retry the first kind.
var temporary = []syscall.Errno{
	syscall.ECONNABORTED, syscall.EPROTO, syscall.ENOPROTOOPT, syscall.EPERM, syscall.EOPNOTSUPP,
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EINTR,
}

// turnAway refuses the connection that has waited longest, and reports whether it did.
func (l *Listener) turnAway() bool {
	s := l.cfg.Spare
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.openLocked()
	if !s.closeLocked() {
		return false
	}
	_ = l.socket.SetDeadline(time.Now().Add(refusalTimeout)) // the client may have left meanwhile
	defer func() { _ = l.socket.SetDeadline(time.Time{}) }()
	c, err := l.socket.Accept()
	if err != nil {
		return false
	}
	l.refuse(c, &limit.Refusal{Problem: problem.New(wire.CodeOverloaded, "retry later", "the daemon has reached its limit of open files").Retry(time.Second)})
	l.cfg.Metrics.Limited.WithLabelValues("open_files").Inc()
	l.logFailing(syscall.EMFILE)
	return true
}

// A Spare is one open descriptor in reserve for when the process has no other. It may be
// used concurrently.
type Spare struct {
	mu   sync.Mutex // guards file; held while turnAway uses its descriptor
	file *os.File
}

// Open opens the descriptor unless it is open.
func (s *Spare) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openLocked()
}

func (s *Spare) openLocked() {
	if s.file == nil {
		s.file, _ = os.Open(os.DevNull) // if this fails, accept waits for a free descriptor
	}
}

// Close closes the descriptor. It may be called again.
func (s *Spare) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked()
}

// closeLocked reports whether the descriptor was open.
func (s *Spare) closeLocked() bool {
	err := s.file.Close() // os.ErrInvalid if file is nil
	s.file = nil
	return err == nil
}
