package lane

import (
	"encoding/binary"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// supported says that the lane works here; elsewhere net/http serves everything.
const supported = true

// A poller is what a loop has from the kernel: an epoll instance, and an eventfd to be
// woken by. The loop waits for the instance in Go's poller, as for any file, so it
// blocks no thread. Set by open, immutable until
// shut.
type poller struct {
	file  *os.File        // the instance; closing it ends run; nil: not open
	raw   syscall.RawConn // of file
	epoll int
	event int
}

// isOpen reports whether the loop runs.
func (p *poller) isOpen() bool { return p.file != nil }

// open starts the loop, unless it runs. Lane.mu guards it.
func (l *loop) open() error {
	if l.isOpen() {
		return nil
	}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	// Package os uses Go's poller for descriptors that do not block.
	if err := syscall.SetNonblock(epoll, true); err != nil {
		_ = syscall.Close(epoll)
		return os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(epoll), "epoll")
	raw, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{}) // it fails if Go's poller does not take the file
	}
	event := 0
	if err == nil {
		event, err = newEvent(epoll)
	}
	if err != nil {
		_ = file.Close()
		return err
	}
	l.poller = poller{file: file, raw: raw, epoll: epoll, event: event}
	l.running.Go(l.run)
	return nil
}

// newEvent returns an eventfd of which epoll tells.
func newEvent(epoll int) (int, error) {
	fd, _, errno := syscall.Syscall(syscall.SYS_EVENTFD2, 0, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errno != 0 {
		return 0, os.NewSyscallError("eventfd2", errno)
	}
	event := int(fd)
	if err := control(epoll, syscall.EPOLL_CTL_ADD, event, syscall.EPOLLIN|edges); err != nil {
		closeFD(event)
		return 0, err
	}
	return event, nil
}

// shut returns when run has ended. No connection may be left, and none can come.
func (l *loop) shut() {
	if !l.isOpen() {
		return
	}
	_ = l.file.Close() // it waits for run
	l.running.Wait()
	for l.deliver(false) { // what goroutines posted last
	}
	l.mail.Lock()
	defer l.mail.Unlock()
	l.asleep = false
	closeFD(l.event)
	l.poller = poller{}
}

const (
	edges    = 1 << 31 // EPOLLET; syscall's constant is negative
	arrivals = syscall.EPOLLIN | syscall.EPOLLRDHUP | edges
	andSpace = arrivals | syscall.EPOLLOUT

	ends = syscall.EPOLLRDHUP | syscall.EPOLLHUP | syscall.EPOLLERR // the client has ended its side, or all
)

// reserve makes a place for a descriptor, so that watch finds one. Anyone may call it.
func (p *poller) reserve(fd int) error { return control(p.epoll, syscall.EPOLL_CTL_ADD, fd, 0) }

// watch has the loop hear of events on a descriptor: of those that were before, too.
func (p *poller) watch(fd int, events uint32) error {
	return control(p.epoll, syscall.EPOLL_CTL_MOD, fd, events)
}

// remove ends what reserve began, before the descriptor is closed.
func (p *poller) remove(fd int) { _ = control(p.epoll, syscall.EPOLL_CTL_DEL, fd, 0) }

func control(epoll, what, fd int, events uint32) error {
	event := syscall.EpollEvent{Events: events, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", syscall.EpollCtl(epoll, what, fd, &event))
}

// wake makes an event. Nobody reads the eventfd: each write is another edge, and its
// counter has room for 2^64 of them.
func (p *poller) wake() { _, _ = rawWrite(p.event, one) }

var one = binary.NativeEndian.AppendUint64(nil, 1)

// run is the loop. It never leaves raw.Read in between: Go's poller tells of each
// change once, and a new call forgets those before it.
func (l *loop) run() {
	var events [atOnce]syscall.EpollEvent
	_ = l.raw.Read(func(epoll uintptr) bool {
		for {
			n := epollWait(epoll, events[:])
			for i := range events[:n] {
				l.happened(int(events[i].Fd), heardOf(events[i].Events))
			}
			// Fewer events than asked for were all; Go's poller tells of the next.
			if !l.deliver(n == atOnce) {
				return false
			}
		}
	})
}

// heardOf translates an event.
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

// epollWait, rawRead and rawWrite do not tell Go's scheduler of the system call: it
// does not wait, writes are of 64 KiB at most (output.put), and telling costs 1 to 2 µs
// of the 11 that a delivery takes.

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

// duplicate returns a descriptor of the same connection that Go's poller does not know.
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
