package lane

import (
	"os"
	"sync"
	"syscall"
)

// leavers notices that the clients of connections which nobody reads have left: a
// goroutine that waits on its session's queue cannot. It is one epoll instance of
// our own, level with Go's, that each connection joins once; closing the
// connection leaves it.
type leavers struct {
	opened   sync.Once
	failure  error // of opening
	epoll    int
	stop     *os.File // closing it ends watch; nil: not open
	wake     *os.File
	watching sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	next int32
	by   map[int32]*conn // by the number given to the kernel, never used twice in a row
}

func newLeavers() *leavers { return &leavers{by: make(map[int32]*conn)} }

// open makes the instance and watches it; once, when the first connection joins.
func (l *leavers) open() error {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	wake, stop, err := os.Pipe()
	if err != nil {
		_ = syscall.Close(epoll)
		return err
	}
	l.epoll, l.stop, l.wake = epoll, stop, wake
	if err := l.add(int(wake.Fd()), 0, syscall.EPOLLIN); err != nil {
		return err
	}
	l.watching.Go(l.watch)
	return nil
}

func (l *leavers) add(fd int, number int32, events uint32) error {
	ev := syscall.EpollEvent{Events: events, Fd: number} // Fd is the kernel's to give back, nothing else
	return os.NewSyscallError("epoll_ctl", syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_ADD, fd, &ev))
}

// join watches c until it leaves.
func (l *leavers) join(c *conn) error {
	l.opened.Do(func() { l.failure = l.open() })
	if l.failure != nil {
		return l.failure
	}
	l.mu.Lock()
	l.next = max(l.next+1, 1)
	number := l.next
	l.by[number] = c
	l.mu.Unlock()
	c.watched = number
	var err error
	control := c.raw.Control(func(fd uintptr) {
		const edge = 1 << 31 // EPOLLET; syscall's constant is negative
		err = l.add(int(fd), number, syscall.EPOLLRDHUP|edge)
	})
	if err == nil {
		err = control
	}
	return err
}

func (l *leavers) leave(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.by, c.watched)
}

func (l *leavers) find(number int32) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[number]
}

// watch runs until close.
func (l *leavers) watch() {
	events := make([]syscall.EpollEvent, 128)
	for {
		n, err := syscall.EpollWait(l.epoll, events, -1)
		if err != nil && err != syscall.EINTR {
			return
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd == 0 {
				_ = syscall.Close(l.epoll)
				_ = l.wake.Close()
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
	l.opened.Do(func() {}) // from now on it stays as it is
	if l.stop != nil {
		_ = l.stop.Close()
	}
	l.watching.Wait()
}
