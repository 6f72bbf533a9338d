package lane

import (
	"cmp"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A poller is an epoll instance, and an eventfd that wakes the loop. Go's poller watches
// the instance, as it does any file, so a waiting loop blocks no thread. open sets the
// fields; they do not change until shut.
type poller struct {
	file  *os.File        // the instance; closing it ends run; nil: not open
	raw   syscall.RawConn // of file
	epoll int
	event int
}

// isOpen reports whether the loop runs.
func (p *poller) isOpen() bool { return p.file != nil }

// open starts the loop unless it runs. The caller holds Lane.mu.
func (l *loop) open() error {
	if l.isOpen() {
		return nil
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	_ = unix.SetNonblock(epoll, true) // package os uses Go's poller only for descriptors that do not block
	file, event := os.NewFile(uintptr(epoll), "epoll"), -1
	raw, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{}) // fails unless Go's poller watches the file
	}
	if err == nil {
		event, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	}
	if err == nil {
		err = control(epoll, unix.EPOLL_CTL_ADD, event, unix.EPOLLIN|unix.EPOLLET)
	}
	if err != nil {
		_ = file.Close()
		closeFD(event)
		return err
	}
	l.poller = poller{file: file, raw: raw, epoll: epoll, event: event}
	l.running.Go(l.run)
	return nil
}

// shut ends run and waits for it. No connection may be left, and none may come.
func (l *loop) shut() {
	if !l.isOpen() {
		return
	}
	_ = l.file.Close() // waits for run
	l.running.Wait()
	for l.deliver(false) { // the last letters of goroutines
	}
	l.mail.Lock()
	defer l.mail.Unlock()
	l.asleep = false
	closeFD(l.event)
	l.poller = poller{}
}

// Events that a loop asks for.
const (
	arrivals = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET
	andSpace = arrivals | unix.EPOLLOUT
)

// reserve makes room for a descriptor in the instance, so that watch cannot lack memory.
// Any goroutine may call it.
func (p *poller) reserve(fd int) error { return control(p.epoll, unix.EPOLL_CTL_ADD, fd, 0) }

// watch asks for events on a descriptor, also for those that happened before.
func (p *poller) watch(fd int, events uint32) error {
	return control(p.epoll, unix.EPOLL_CTL_MOD, fd, events)
}

// remove ends what reserve began. The caller closes the descriptor later.
func (p *poller) remove(fd int) { _ = control(p.epoll, unix.EPOLL_CTL_DEL, fd, 0) }

func control(epoll, what, fd int, events uint32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(epoll, what, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}))
}

// run is the loop. It stays in raw.Read until the end: Go's poller reports each change
// once, and a new call would lose the changes before it.
func (l *loop) run() {
	var events [atOnce]unix.EpollEvent
	_ = l.raw.Read(func(epoll uintptr) bool {
		for {
			n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&events)), atOnce, 0, 0, 0)
			if errno != 0 {
				n = 0
			}
			l.clock = time.Since(l.begun)
			for _, e := range events[:n] {
				l.handle(e)
			}
			// With fewer events than asked for, the instance has no more, and Go's poller
			// reports the next.
			if !l.deliver(n == atOnce) {
				return false
			}
		}
	})
}

// handle handles one event of the kernel. An event of a closed descriptor cannot reach
// the next connection with the same number: leave removes the descriptor from the
// instance, and the next connection joins by a letter, which the loop opens after all
// events that it took before.
func (l *loop) handle(e unix.EpollEvent) {
	fd := int(e.Fd)
	if fd >= len(l.conns) || l.conns[fd] == nil {
		return
	}
	c := l.conns[fd]
	ended := e.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	c.ended = c.ended || ended
	c.unread = c.unread || ended || e.Events&unix.EPOLLIN != 0
	c.proceed()
	l.noteTurn()
}

// run, rawRead and rawWrite do not tell Go's scheduler about the system call. It never
// blocks, and one write has at most 64 KiB (output.put). Telling costs 1 to 2 µs of the 11
// that a delivery takes.

func rawRead(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

func rawWrite(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

// duplicate returns a second descriptor of a connection, which Go's poller does not
// watch.
func duplicate(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, cmp.Or(failed, err)
}

func closeFD(fd int) { _ = syscall.Close(fd) }

func shutWriting(fd int) { _ = syscall.Shutdown(fd, syscall.SHUT_WR) }
