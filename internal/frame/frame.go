// Package frame is the bytes of a message: made once for each format, and shared by
// every subscriber that the message is sent to.
package frame

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Frame is one message or one gap with its bytes, which are encoded once per
// format on first need and shared by everyone they are sent to.
//
// A broadcast to ten thousand subscribers thus encodes once. The bytes are
// immutable, and whoever holds a Frame may call any method concurrently.
type Frame struct {
	message *wire.Message // nil for a gap; immutable
	gap     *wire.Gap     // nil for a message; immutable

	accepted time.Time     // when the daemon took the message; immutable
	ttl      time.Duration // the message's own life; 0 is as long as history keeps it; immutable

	encoded atomic.Pointer[encoding] // the newest, which leads to older ones; set under mu, until Forget
	whole   atomic.Pointer[whole]    // see Whole; the newest, which leads to older ones; set under mu
	pins    atomic.Int64             // see Pin; with released, once the history let go of it

	account *memory.Account // where its memory is counted; nil: nowhere; immutable

	deflating sync.Mutex // see deflate; before mu

	mu      sync.Mutex // guards changes of the two lists, and settled
	settled bool       // nothing is counted any more
}

// New returns the frame of m, which the caller must not change any
// more. The message was accepted at the given instant and lives for ttl, or as
// long as it is held if ttl is 0. Its memory is counted in account, if that is not
// nil: encodings until Release and the last Unpin, the message between the two.
func New(m *wire.Message, accepted time.Time, ttl time.Duration, account *memory.Account) *Frame {
	return &Frame{message: m, accepted: accepted, ttl: ttl, account: account}
}

// NewGap returns the frame of g.
func NewGap(g wire.Gap) *Frame { return &Frame{gap: &g} }

// Message returns the message, or nil if the frame is a gap.
func (f *Frame) Message() *wire.Message { return f.message }

// Gap returns the gap, or nil if the frame is a message.
func (f *Frame) Gap() *wire.Gap { return f.gap }

// Accepted returns when the daemon took the message; zero for a gap.
func (f *Frame) Accepted() time.Time { return f.accepted }

// TTL returns the message's own life, counted from Accepted; 0 is as long as it is
// held.
func (f *Frame) TTL() time.Duration { return f.ttl }

// Position returns where a subscriber is once it has this frame.
func (f *Frame) Position() wire.Position {
	if f.gap != nil {
		return f.gap.Position
	}
	return f.message.Position
}

// Expired reports whether the message's own life (ttl) is over at now. A gap
// never expires.
func (f *Frame) Expired(now time.Time) bool {
	return f.ttl > 0 && now.Sub(f.accepted) >= f.ttl
}

// gapSize is about what the frame of a gap takes.
const gapSize = 160

// Size returns about how many bytes the frame takes in an answer and in memory.
func (f *Frame) Size() int {
	if f.gap != nil {
		return gapSize
	}
	return f.message.Size()
}

// An encoding is a frame's bytes in one form. It is immutable.
type encoding struct {
	form  form
	bytes []byte // nil: deflated, they are not worth it
	older *encoding
}

// Bytes returns the frame in the given format. The caller must not change them.
func (f *Frame) Bytes(format Format) []byte { return f.in(form{format: format}) }

// Chunk returns the frame in the given format as one chunk (RFC 9112, section 7.1).
// The caller must not change the bytes.
func (f *Frame) Chunk(format Format) []byte { return f.in(form{format: format, chunk: true}) }

func (f *Frame) in(form form) []byte {
	// Fast path: someone encoded it before.
	if b, made := f.find(form); made {
		return b
	}
	return f.encode(form)
}

// find returns the bytes of a form if they were made. A frame has few forms.
func (f *Frame) find(form form) (b []byte, made bool) {
	for e := f.encoded.Load(); e != nil; e = e.older {
		if e.form == form {
			return e.bytes, true
		}
	}
	return nil, false
}

// encode makes the bytes of a form. Who asks for the same at the same time may make
// them too: the first that are put on the list are everyone's.
func (f *Frame) encode(form form) []byte {
	b := form.encode(f)
	f.mu.Lock()
	defer f.mu.Unlock()
	if first, made := f.find(form); made {
		return first
	}
	f.encoded.Store(&encoding{form, b, f.encoded.Load()})
	f.countLocked(len(b))
	return b
}

func (f *Frame) countLocked(bytes int) {
	if !f.settled {
		f.account.Add(memory.Encodings, int64(bytes))
	}
}

// released is in Frame.pins once the history let go of the frame.
const released = 1 << 32

// Pin says that a queue holds the frame, until Unpin.
func (f *Frame) Pin() {
	pins := f.pins.Add(1)
	if f.account == nil || pins%released != 1 {
		return
	}
	f.account.Add(memory.Queued, int64(f.Size()))
	if pins == released+1 {
		f.account.Add(memory.Pinned, int64(f.Size())) // it came to the queue late
	}
}

// Unpin ends a Pin.
func (f *Frame) Unpin() {
	pins := f.pins.Add(-1)
	if f.account != nil && pins%released == 0 {
		f.account.Add(memory.Queued, -int64(f.Size()))
	}
	if pins == released {
		f.settle(-f.Size())
	}
}

// Release says that the history no longer holds the frame, which is called once.
// Queues may hold it for a while yet.
func (f *Frame) Release() {
	if f.pins.Add(released) == released {
		f.settle(0)
	} else {
		f.account.Add(memory.Pinned, int64(f.Size())) // the last Unpin may have taken it off before
	}
}

// settle takes the frame off the account. Whoever still writes it keeps its bytes.
func (f *Frame) settle(pinned int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetAllLocked()
	f.settled = true
	f.account.Add(memory.Pinned, int64(pinned))
}

// Forget lets go of the encodings, for want of memory: who needs one makes it anew.
func (f *Frame) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetAllLocked()
}

func (f *Frame) forgetAllLocked() {
	for e := f.encoded.Swap(nil); e != nil; e = e.older {
		f.countLocked(-len(e.bytes))
	}
	f.discountWholesLocked(f.whole.Swap(nil))
}
