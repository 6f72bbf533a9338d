package eventloop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// New returns the loop that suits this system best.
func New(cfg Config) (Loop, error) { return newEpoll(cfg) }

// An epollLoop is a Loop on one thread.
//
// It reads and writes with raw system calls: they never block, since the sockets
// do not, so telling Go's scheduler about each would be a cost without a use.
type epollLoop struct {
	start   time.Time
	dialer  dialer
	epoll   int
	wake    int // an eventfd that a done context writes to
	conns   []*epollConn
	dialled int32
	events  []unix.EpollEvent
	buffer  []byte
	in, out int64
	coarse  bool // the kernel has no epoll_pwait2, so waits are whole milliseconds
}

// An epollConn owns its descriptor until closed.
type epollConn struct {
	loop       *epollLoop
	machine    Machine
	fd         int   // -1 when closed
	number     int32 // of the connection; tells it from a former one with its descriptor
	connecting bool
	unsent     []byte // what the kernel did not take yet, or what waits for the connection
}

// eventBatch bounds how many events one wait returns.
const eventBatch = 256

func newEpoll(cfg Config) (*epollLoop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create eventfd: %w", err), unix.Close(epoll))
	}
	l := &epollLoop{
		start:  time.Now(),
		dialer: newDialer(cfg.Target),
		epoll:  epoll,
		wake:   wake,
		events: make([]unix.EpollEvent, eventBatch),
		buffer: make([]byte, readBuffer),
	}
	if err := l.control(unix.EPOLL_CTL_ADD, wake, 0, unix.EPOLLIN); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *epollLoop) Now() time.Duration { return time.Since(l.start) }

func (l *epollLoop) Traffic() (in, out int64) { return l.in, l.out }

// Usage reads the scheduler's own account: "run-time wait-time slices", in
// nanoseconds.
func (l *epollLoop) Usage() (Usage, bool) {
	text, err := os.ReadFile("/proc/thread-self/schedstat")
	var u Usage
	if err == nil {
		_, err = fmt.Sscan(string(text), (*int64)(&u.CPU), (*int64)(&u.Waited))
	}
	return u, err == nil
}

func (l *epollLoop) Close() {
	for _, c := range l.conns {
		if c != nil {
			c.release()
		}
	}
	_ = unix.Close(l.wake)
	_ = unix.Close(l.epoll)
}

func (l *epollLoop) Dial(m Machine) Conn {
	l.dialled++
	c := &epollConn{loop: l, machine: m, number: l.dialled, connecting: true, fd: -1}
	fd, err := l.dialer.connect(int(l.dialled))
	if err != nil {
		m.Closed(l.Now(), err)
		return c
	}
	c.fd = fd
	l.adopt(c)
	if err := l.control(unix.EPOLL_CTL_ADD, fd, c.number, unix.EPOLLOUT); err != nil {
		c.close(err)
	}
	return c
}

func (l *epollLoop) adopt(c *epollConn) {
	for len(l.conns) <= c.fd {
		l.conns = append(l.conns, nil)
	}
	l.conns[c.fd] = c
}

func (l *epollLoop) control(op, fd int, number int32, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: number}
	err := unix.EpollCtl(l.epoll, op, fd, &event)
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// Run is flat: wait for what comes first, serve it, and look at the schedule
// between any two connections, so that a burst of deliveries does not make the
// next publish late.
func (l *epollLoop) Run(ctx context.Context, d Driver) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer l.heed(ctx)()
	for ctx.Err() == nil {
		next, done := d.Due(l.Now())
		if done {
			return nil
		}
		n, err := l.wait(next)
		if err != nil {
			return err
		}
		for _, event := range l.events[:n] {
			if now := l.serve(event); now >= next {
				if next, done = d.Due(now); done {
					return nil
				}
			}
		}
	}
	return ctx.Err()
}

// heed has a done ctx wake the loop until the function that it returns is called.
// That one waits for a waking that is under way: after Close, the descriptor may be
// somebody else's.
func (l *epollLoop) heed(ctx context.Context) (stop func()) {
	woken := make(chan struct{})
	forget := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	return func() {
		if !forget() {
			<-woken
		}
	}
}

// wait returns how many events there are, at the latest at the given time.
func (l *epollLoop) wait(until time.Duration) (int, error) {
	// Fast path: while there is work, no thread switch is risked.
	if n, err := l.epollWait(0); n > 0 || err != nil {
		return n, err
	}
	left := until - l.Now()
	if left <= 0 {
		return 0, nil
	}
	if !l.coarse {
		n, err := l.epollPwait2(left)
		if !errors.Is(err, unix.ENOSYS) {
			return n, err
		}
		l.coarse = true
	}
	return l.epollWait(int((left + time.Millisecond - 1) / time.Millisecond))
}

func (l *epollLoop) epollWait(milliseconds int) (int, error) {
	if milliseconds == 0 {
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll),
			uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), 0, 0, 0)
		return waited(int(n), errno)
	}
	n, err := unix.EpollWait(l.epoll, l.events, milliseconds)
	if errors.Is(err, unix.EINTR) {
		return 0, nil
	}
	return n, err
}

func (l *epollLoop) epollPwait2(timeout time.Duration) (int, error) {
	t := unix.NsecToTimespec(int64(timeout))
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epoll),
		uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), uintptr(unsafe.Pointer(&t)), 0, 0)
	return waited(int(n), errno)
}

func waited(n int, errno unix.Errno) (int, error) {
	switch errno {
	case 0:
		return n, nil
	case unix.EINTR:
		return 0, nil
	}
	return 0, os.NewSyscallError("epoll_wait", errno)
}

// serve handles one event and returns the time at which it was seen.
func (l *epollLoop) serve(event unix.EpollEvent) time.Duration {
	now := l.Now()
	if int(event.Fd) == l.wake {
		return now
	}
	c := l.conns[event.Fd]
	if c == nil || c.number != event.Pad {
		return now // closed by an earlier event of the same batch; maybe reused since
	}
	if c.connecting {
		c.connected(now)
		return now
	}
	if event.Events&unix.EPOLLOUT != 0 {
		c.flush()
	}
	if event.Events&^unix.EPOLLOUT != 0 && c.fd >= 0 {
		return c.receive()
	}
	return now
}

func (c *epollConn) connected(now time.Duration) {
	code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	if err == nil {
		err = c.loop.control(unix.EPOLL_CTL_MOD, c.fd, c.number, unix.EPOLLIN)
	}
	if err != nil {
		c.close(fmt.Errorf("connect to %s: %w", c.loop.dialer.name, err))
		return
	}
	c.connecting = false
	early := c.unsent
	c.unsent = nil
	c.Send(c.machine.Connected(now))
	c.Send(early)
}

// receive reads once; if there is more, the next wait says so.
func (c *epollConn) receive() time.Duration {
	l := c.loop
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&l.buffer[0])), uintptr(len(l.buffer)))
	now := l.Now()
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return now
	case errno != 0:
		c.close(os.NewSyscallError("read", errno))
		return now
	case n == 0:
		c.close(ErrServerClosed)
		return now
	}
	l.in += int64(n)
	reply, err := c.machine.Receive(now, l.buffer[:n])
	if err != nil {
		c.close(err)
		return now
	}
	c.Send(reply)
	return now
}

// Send writes b behind what is still unsent.
func (c *epollConn) Send(b []byte) {
	if len(b) == 0 || c.fd < 0 {
		return
	}
	if c.connecting || len(c.unsent) > 0 {
		c.unsent = append(c.unsent, b...)
		return
	}
	n := c.write(b)
	if c.fd < 0 || n == len(b) {
		return
	}
	c.unsent = append(c.unsent, b[n:]...)
	c.watch(unix.EPOLLIN | unix.EPOLLOUT)
}

func (c *epollConn) flush() {
	n := c.write(c.unsent)
	if c.fd < 0 {
		return
	}
	c.unsent = c.unsent[n:]
	if len(c.unsent) == 0 {
		c.unsent = nil
		c.watch(unix.EPOLLIN)
	}
}

func (c *epollConn) watch(events uint32) {
	if err := c.loop.control(unix.EPOLL_CTL_MOD, c.fd, c.number, events); err != nil {
		c.close(err)
	}
}

// write returns how many bytes the kernel took.
func (c *epollConn) write(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(c.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	switch errno {
	case 0:
		c.loop.out += int64(n)
		return int(n)
	case unix.EAGAIN, unix.EINTR:
		return 0
	}
	c.close(os.NewSyscallError("write", errno))
	return 0
}

func (c *epollConn) close(err error) {
	c.release()
	c.machine.Closed(c.loop.Now(), err)
}

func (c *epollConn) release() {
	if c.fd < 0 {
		return
	}
	c.loop.conns[c.fd] = nil
	_ = unix.Close(c.fd)
	c.fd = -1
}

// A dialer makes sockets that connect to one address.
type dialer struct {
	name    string // of the target
	family  int
	target  unix.Sockaddr
	sources bool // spread over the loopback network's addresses
}

// loopbackSources is how many source addresses a loopback test spreads over. A
// source address has about 28,000 ports toward one server.
const loopbackSources = 100

func newDialer(target *net.TCPAddr) dialer {
	if ip := target.IP.To4(); ip != nil {
		return dialer{
			name:    target.String(),
			family:  unix.AF_INET,
			target:  &unix.SockaddrInet4{Port: target.Port, Addr: [4]byte(ip)},
			sources: ip.IsLoopback(),
		}
	}
	return dialer{
		name:   target.String(),
		family: unix.AF_INET6,
		target: &unix.SockaddrInet6{Port: target.Port, Addr: [16]byte(target.IP.To16())},
	}
}

// connect begins the nth connection.
func (d dialer) connect(n int) (int, error) {
	fd, err := unix.Socket(d.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := d.begin(fd, n); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (d dialer) begin(fd, n int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	// Closing resets: thousands of ports in TIME_WAIT would be in the next run's way.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return fmt.Errorf("set SO_LINGER: %w", err)
	}
	if d.sources {
		if err := bindSource(fd, n); err != nil {
			return err
		}
	}
	if err := unix.Connect(fd, d.target); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect to %s: %w", d.name, err)
	}
	return nil
}

func bindSource(fd, n int) error {
	// The port is chosen by connect, which knows the whole four-tuple.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return fmt.Errorf("set IP_BIND_ADDRESS_NO_PORT: %w", err)
	}
	source := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 1, byte(1 + n%loopbackSources)}}
	if err := unix.Bind(fd, source); err != nil {
		return fmt.Errorf("bind to a source address: %w", err)
	}
	return nil
}
