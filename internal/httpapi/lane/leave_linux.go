package lane

import (
	"os"
	"sync"
	"syscall"
)

// leavers notices that the clients of connections which nobody reads have left: a
// goroutine that waits on its session's queue cannot. It is one epoll instance of
// our own beside Go's, made when it is first needed, that each connection joins
// once. All methods may be called concurrently.
type leavers struct {
	mu       sync.Mutex // guards the fields below
	epoll    int
	stop     *os.File // closing it ends watch; nil: not open
	wake     *os.File
	closed   bool
	next     int32
	by       map[int32]*conn // by the number given to the kernel, never used twice in a row
	watching sync.WaitGroup
}

func newLeavers() *leavers { return &leavers{by: make(map[int32]*conn)} }

// openLocked makes the instance and watches it, unless that was done.
func (l *leavers) openLocked() error {
	if l.closed {
		return os.ErrClosed
	}
	if l.stop != nil {
		return nil
	}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	wake, stop, err := os.Pipe()
	if err == nil {
		if err = add(epoll, int(wake.Fd()), 0, syscall.EPOLLIN); err != nil {
			_, _ = wake.Close(), stop.Close()
		}
	}
	if err != nil {
		_ = syscall.Close(epoll)
		return err
	}
	l.epoll, l.stop, l.wake = epoll, stop, wake
	l.watching.Go(func() { l.watch(epoll) })
	return nil
}

func add(epoll, fd int, number int32, events uint32) error {
	ev := syscall.EpollEvent{Events: events, Fd: number} // Fd is the kernel's to give back, nothing else
	return os.NewSyscallError("epoll_ctl", syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, fd, &ev))
}

// join watches c until it leaves.
func (l *leavers) join(c *conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.openLocked(); err != nil {
		return err
	}
	l.next = max(l.next+1, 1)
	var err error
	control := c.raw.Control(func(fd uintptr) {
		const edge = 1 << 31 // EPOLLET; syscall's constant is negative
		err = add(l.epoll, int(fd), l.next, syscall.EPOLLRDHUP|edge)
	})
	if err == nil {
		err = control
	}
	if err == nil {
		c.watched = l.next
		l.by[c.watched] = c
	}
	return err
}

// leave ends the watching of c, whose descriptor may live on in net/http.
func (l *leavers) leave(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[c.watched] != c {
		return
	}
	delete(l.by, c.watched)
	// A closed connection has left by itself.
	_ = c.raw.Control(func(fd uintptr) {
		_ = syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_DEL, int(fd), nil)
	})
}

func (l *leavers) find(number int32) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[number]
}

// watch runs until close.
func (l *leavers) watch(epoll int) {
	events := make([]syscall.EpollEvent, 128)
	for {
		n, err := syscall.EpollWait(epoll, events, -1)
		if err != nil && err != syscall.EINTR {
			return
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd == 0 {
				return
			}
			if c := l.find(e.Fd); c != nil {
				c.gone.left()
			}
		}
	}
}

// close returns when watch has ended. Nothing joins any more.
func (l *leavers) close() {
	l.mu.Lock()
	l.closed = true
	opened := l.stop != nil
	if opened {
		_ = l.stop.Close()
	}
	l.mu.Unlock()
	l.watching.Wait()
	if opened {
		_ = l.wake.Close()
		_ = syscall.Close(l.epoll)
	}
}
