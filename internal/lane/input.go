package lane

import (
	"sync"
	"time"
)

// An input is the reading side of a connection. It holds a buffer only while it has bytes
// that nobody has served.
type input struct {
	buf    *[bufferBytes]byte // nil: empty
	filled int                // how many bytes of buf are filled
	readAt time.Duration      // when the last of them were read, after lane.begun

	unread  bool // the socket may have more bytes
	ended   bool // the client has closed its side
	partial bool // buf has no whole request, or no whole piece of a conversation
}

// bufferBytes is the longest request that the lane reads.
const bufferBytes = 8 << 10

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// prefill takes over bytes that were read before the connection joined.
func (in *input) prefill(b []byte) {
	if len(b) > 0 {
		in.buf = buffers.Get().(*[bufferBytes]byte)
		in.filled = copy(in.buf[:], b)
	}
}

// bytes returns the bytes that nobody has served.
func (in *input) bytes() []byte { return in.buf[:in.filled] }

// has reports whether a whole request, or piece of a conversation, may be there.
func (in *input) has() bool { return in.filled > 0 && !in.partial }

func (in *input) release() {
	if in.buf != nil {
		buffers.Put(in.buf)
		in.buf, in.filled = nil, 0
	}
}
