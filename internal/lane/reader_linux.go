package lane

import (
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// supported says that the lane has what it needs here; elsewhere net/http serves
// everything.
const supported = true

// A reader hears of what happens on the lane's connections and serves it: an epoll
// instance of our own and one goroutine. The goroutine waits for the instance in
// Go's poller, as one does for any file, so no thread is blocked by it.
//
// Go's poller would wake a goroutine per connection, and for the second that is
// ready together with a first it wakes another thread, too, which mostly goes back
// to sleep at once. In a collaboration of pairs that was an eighth of the daemon's
// CPU, and the goroutines' stacks were a third of what a parked poll takes. What
// the lane does for a request never waits, so one goroutine can do it for all: what
// has to wait, or takes long, gets a goroutine then.
//
// It is opened when the first connection joins. All methods may be called
// concurrently.
type reader struct {
	running sync.WaitGroup

	mu     sync.Mutex      // guards the fields below, which are set once, and conns
	closed bool            // it cannot be opened any more
	file   *os.File        // the epoll instance; closing it ends run; nil: not open
	raw    syscall.RawConn // of file
	epoll  int
	conns  []*conn // by descriptor
	number int32   // of the connection that joined last
}

// openLocked opens the instance, unless that was done.
func (r *reader) openLocked() error {
	if r.file != nil {
		return nil
	}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	// Non-blocking is what tells package os to use Go's poller.
	if err := syscall.SetNonblock(epoll, true); err != nil {
		_ = syscall.Close(epoll)
		return os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(epoll), "epoll")
	raw, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{}) // it fails if Go's poller would not have it
	}
	if err != nil {
		_ = file.Close()
		return err
	}
	r.epoll, r.file, r.raw = epoll, file, raw
	r.running.Go(r.run)
	return nil
}

// close returns when run has ended. No connection may be left, and none can join.
func (r *reader) close() {
	r.mu.Lock()
	r.closed = true
	file := r.file
	r.mu.Unlock()
	if file != nil {
		_ = file.Close() // it waits for run
	}
	r.running.Wait()
}

const (
	arrivals = syscall.EPOLLIN | syscall.EPOLLRDHUP | 1<<31 // EPOLLET; syscall's constant is negative
	andSpace = arrivals | syscall.EPOLLOUT

	ends = syscall.EPOLLRDHUP | syscall.EPOLLHUP | syscall.EPOLLERR // the client has ended its side, or all
)

// join has c told of what arrives, from now on.
func (r *reader) join(c *conn) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return net.ErrClosed
	}
	if err := r.openLocked(); err != nil {
		return err
	}
	r.number++
	c.number = r.number
	for len(r.conns) <= c.fd {
		r.conns = append(r.conns, nil)
	}
	r.conns[c.fd] = c
	return r.control(syscall.EPOLL_CTL_ADD, c, arrivals)
}

// awaitSpace has c told of space for writing, too.
func (r *reader) awaitSpace(c *conn) error { return r.control(syscall.EPOLL_CTL_MOD, c, andSpace) }

// leave ends what join began. It comes before the descriptor is closed.
func (r *reader) leave(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.fd < len(r.conns) && r.conns[c.fd] == c {
		r.conns[c.fd] = nil
		_ = r.control(syscall.EPOLL_CTL_DEL, c, 0) // it fails for what could not join
	}
}

// control tells the kernel, which gives number back with every event: one that was
// under way when a descriptor was closed and used anew is not the new one's.
func (r *reader) control(what int, c *conn, events uint32) error {
	event := syscall.EpollEvent{Events: events, Fd: int32(c.fd), Pad: c.number}
	return os.NewSyscallError("epoll_ctl", syscall.EpollCtl(r.epoll, what, c.fd, &event))
}

// atOnce is how many events are taken at a time.
const atOnce = 128

// run serves what comes until close. It never leaves raw.Read in between: Go's
// poller tells of each change once, and a new call forgets what came before it.
func (r *reader) run() {
	var events [atOnce]syscall.EpollEvent
	var conns [atOnce]*conn
	_ = r.raw.Read(func(epoll uintptr) bool {
		for {
			n := epollWait(epoll, events[:])
			r.find(events[:n], conns[:])
			for i, c := range conns[:n] {
				if c != nil {
					c.happened(heardOf(events[i].Events))
				}
			}
			clear(conns[:n])
			// What comes from now on is told: fewer than asked for were all there were.
			if n < atOnce {
				return false
			}
			runtime.Gosched()
		}
	})
}

// heardOf says in the lane's words what happened.
func heardOf(events uint32) (what uint32) {
	if events&syscall.EPOLLIN != 0 {
		what |= heardArrival
	}
	if events&ends != 0 {
		what |= heardEnd
	}
	if events&syscall.EPOLLOUT != 0 {
		what |= heardSpace
	}
	return what
}

// find sets conns to whom the events happened to.
func (r *reader) find(events []syscall.EpollEvent, conns []*conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range events {
		conns[i] = r.conns[events[i].Fd]
		if conns[i] != nil && conns[i].number != events[i].Pad {
			conns[i] = nil
		}
	}
}

// epollWait, rawRead and rawWrite are the system calls without telling Go's
// scheduler: they do not wait, writes are of 64 KiB at most (output.put), and telling
// costs 1 to 2 µs of the 11 that a delivery takes.

func epollWait(epoll uintptr, events []syscall.EpollEvent) int {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

func rawRead(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

func rawWrite(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

// duplicate returns a descriptor of the same connection that Go's poller knows
// nothing of.
func duplicate(raw syscall.RawConn) (fd int, err error) {
	controlErr := raw.Control(func(old uintptr) {
		n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, old, syscall.F_DUPFD_CLOEXEC, 0)
		fd = int(n)
		if errno != 0 {
			err = os.NewSyscallError("fcntl", errno)
		}
	})
	if controlErr != nil {
		return 0, controlErr
	}
	return fd, err
}

func closeFD(fd int) { _ = syscall.Close(fd) }

func shutWriting(fd int) { _ = syscall.Shutdown(fd, syscall.SHUT_WR) }
