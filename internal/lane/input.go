package lane

import (
	"sync"
	"syscall"
	"time"
)

// An input is the reading side of a connection. It holds a buffer only while that has
// something in it.
type input struct {
	buf    *[bufferBytes]byte // nil: empty
	filled int                // bytes of buf that nobody has served
	readAt time.Duration      // when the last of them were read, after lane.begun

	unread  bool // there may be more to read
	ended   bool // the client has ended its side
	partial bool // what is in buf is no whole request, and no whole piece of a conversation
}

// bufferBytes is the longest request that the lane reads.
const bufferBytes = 8 << 10

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// begins takes over what was read of the connection before.
func (in *input) begins(b []byte) {
	if len(b) > 0 {
		in.buf = buffers.Get().(*[bufferBytes]byte)
		in.filled = copy(in.buf[:], b)
	}
}

// read reads once, and returns how many bytes. over: the client has gone.
func (in *input) read(fd int) (n int, over bool) {
	if in.buf == nil {
		in.buf = buffers.Get().(*[bufferBytes]byte)
	}
	errno := syscall.EINTR
	for errno == syscall.EINTR {
		n, errno = rawRead(fd, in.buf[in.filled:])
	}
	switch {
	case errno == syscall.EAGAIN:
		in.unread = false
		return 0, false
	case n <= 0:
		return 0, true
	}
	in.filled += n
	in.partial = false
	// The loop hears of what comes after this; of an end that was there, it has heard.
	in.unread = in.ended || in.filled == bufferBytes
	return n, false
}

// bytes returns what was read and not served.
func (in *input) bytes() []byte { return in.buf[:in.filled] }

// has reports whether something was read that may be whole.
func (in *input) has() bool { return in.filled > 0 && !in.partial }

func (in *input) maybeRelease() {
	if in.filled == 0 {
		in.release()
	}
}

func (in *input) release() {
	if in.buf != nil {
		buffers.Put(in.buf)
		in.buf, in.filled = nil, 0
	}
}
