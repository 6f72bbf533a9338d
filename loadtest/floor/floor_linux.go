package floor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Server is the floor, listening. Its fields belong to Serve's thread; Addr
// and Stop may be called from any goroutine.
type Server struct {
	address  net.Addr // immutable
	listener *os.File // immutable, as are the descriptors
	accepts  int      // listener's, not blocking: Fd would make it block again
	epoll    int
	wake     int // an eventfd that Stop writes to

	conns   []conn            // by descriptor
	topics  map[string]*topic // never shrinks
	events  []unix.EpollEvent
	buffer  []byte
	stopped bool
}

// A conn is one connection; kind says which.
type conn struct {
	topic  *topic // of a poller or stream
	slot   int32  // in topic.members
	seq    uint32 // of the last message that a poller had
	kind   kind
	parked bool   // a poll waits
	carry  []byte // of a newcomer or publisher: the beginning of a request
}

type kind uint8

const (
	closed kind = iota
	newcomer
	poller
	stream
	publisher
)

// A topic is who listens, and the last messages as they are written.
type topic struct {
	members []int32 // descriptors
	seq     uint32
	polls   [ring][]byte // answers, by seq
	chunks  [ring][]byte
}

// ring is how many messages a poller may fall behind by between two polls.
const ring = 64

// The sizes of what is done at once.
const (
	eventBatch = 256
	readBuffer = 256 << 10
)

// Answers that are always the same; never changed.
var (
	streamHead = []byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	taken      = []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
)

// Listen returns a Server that listens on address. Whoever gets it must call
// Serve, which closes it.
func Listen(address string) (*Server, error) {
	listener, at, err := listen(address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", address, err)
	}
	s := &Server{
		address:  at,
		listener: listener,
		epoll:    -1,
		wake:     -1,
		topics:   map[string]*topic{},
		events:   make([]unix.EpollEvent, eventBatch),
		buffer:   make([]byte, readBuffer),
	}
	if err := s.watchAll(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// listen returns a listening socket that Go's own poller does not know.
func listen(address string) (*os.File, net.Addr, error) {
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // its sockets do more than the floor needs
	l, err := plain.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	return file, l.Addr(), err
}

func (s *Server) watchAll() (err error) {
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("create epoll: %w", err)
	}
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("create eventfd: %w", err)
	}
	s.accepts = int(s.listener.Fd())
	if err := unix.SetNonblock(s.accepts, true); err != nil {
		return fmt.Errorf("listener: %w", err)
	}
	return errors.Join(s.watch(s.wake), s.watch(s.accepts))
}

func (s *Server) watch(fd int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// Addr returns where the Server listens.
func (s *Server) Addr() net.Addr { return s.address }

// Stop makes Serve return. It may be called once, and not after Serve returned.
func (s *Server) Stop() {
	_, _ = unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// Serve serves on a thread of its own until Stop, or until the system refuses.
func (s *Server) Serve() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer s.close()
	for !s.stopped {
		n, err := s.wait()
		if err != nil {
			return err
		}
		for i := range s.events[:n] {
			switch fd := int(s.events[i].Fd); fd {
			case s.accepts:
				s.accept()
			case s.wake:
				s.stopped = true
			default:
				s.readable(fd)
			}
		}
	}
	return nil
}

func (s *Server) close() {
	for fd := range s.conns {
		s.end(fd)
	}
	_ = s.listener.Close()
	if s.wake >= 0 {
		_ = unix.Close(s.wake)
	}
	if s.epoll >= 0 {
		_ = unix.Close(s.epoll)
	}
}

// rawWait is how many milliseconds Go's scheduler is kept in the dark for: not so
// long that a signal's handler, which wants this processor, would wait for it.
const rawWait = 10

// wait returns how many events there are.
func (s *Server) wait() (int, error) {
	// Fast path: while there is work now and again, Go's scheduler need not know of
	// the call, and one call is enough. Asking without waiting first, and then in a
	// way that the scheduler knows, cost about a tenth more CPU per delivery.
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(s.epoll),
		uintptr(unsafe.Pointer(&s.events[0])), uintptr(len(s.events)), rawWait, 0, 0)
	if errno == 0 && n > 0 {
		return int(n), nil
	}
	waited, err := unix.EpollWait(s.epoll, s.events, -1)
	switch {
	case errors.Is(err, unix.EINTR):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("epoll_wait: %w", err)
	}
	return waited, nil
}

// accept takes all who wait.
func (s *Server) accept() {
	for {
		fd, _, err := unix.Accept4(s.accepts, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return // nobody is left, or we have too many: epoll says when to look again
		}
		for len(s.conns) <= fd {
			s.conns = append(s.conns, conn{})
		}
		s.conns[fd] = conn{kind: newcomer}
		if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) != nil || s.watch(fd) != nil {
			s.end(fd)
		}
	}
}

// readable reads once.
func (s *Server) readable(fd int) {
	c := &s.conns[fd]
	if c.kind == closed {
		return // by an earlier event of the same batch
	}
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&s.buffer[0])), uintptr(len(s.buffer)))
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
	case errno != 0 || n == 0:
		s.end(fd)
	case c.kind == poller:
		s.polled(fd, c, s.buffer[:n])
	default:
		s.requested(fd, c, s.buffer[:n])
	}
}

// end closes a connection and forgets it.
func (s *Server) end(fd int) {
	c := &s.conns[fd]
	if c.kind == closed {
		return
	}
	if t := c.topic; t != nil {
		last := len(t.members) - 1
		t.members[c.slot] = t.members[last]
		s.conns[t.members[c.slot]].slot = c.slot
		t.members = t.members[:last]
	}
	*c = conn{}
	_ = unix.Close(fd)
}

// polled is the way of a known poller's request: the end of its head is all that
// matters.
func (s *Server) polled(fd int, c *conn, b []byte) {
	n := len(b)
	if n < 4 || b[n-4] != '\r' || b[n-3] != '\n' || b[n-2] != '\r' || b[n-1] != '\n' {
		return
	}
	t := c.topic
	switch behind := t.seq - c.seq; {
	case behind == 0:
		c.parked = true
	case behind > ring:
		s.end(fd) // what it wants is gone
	default:
		c.seq++
		s.write(fd, t.polls[c.seq%ring])
	}
}

// write writes b whole, or ends the connection.
func (s *Server) write(fd int, b []byte) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 || int(n) != len(b) {
		s.end(fd)
	}
}

// publish writes the same bytes to everyone who waits. Backwards, since a
// failing write puts the last member in the place of the one that it ends.
func (s *Server) publish(t *topic, body []byte) {
	t.seq++
	poll, chunk := &t.polls[t.seq%ring], &t.chunks[t.seq%ring]
	*poll = appendAnswer((*poll)[:0], body)
	*chunk = appendChunk((*chunk)[:0], body)
	for i := len(t.members) - 1; i >= 0; i-- {
		fd := int(t.members[i])
		switch c := &s.conns[fd]; {
		case c.kind == stream:
			s.write(fd, *chunk)
		case c.parked:
			c.parked = false
			c.seq = t.seq
			s.write(fd, *poll)
		}
	}
}
