package wire

import (
	"sync"
	"sync/atomic"
	"time"
)

// Format is how frames are written.
type Format uint8

// The formats.
const (
	NDJSON  Format = iota // application/x-ndjson: one JSON value a line
	formats               // how many there are
)

// ContentType returns the media type of an answer in this format.
func (f Format) ContentType() string { return "application/x-ndjson" }

// A Frame is one message or one gap with its bytes, which are encoded once per
// format on first need and shared by everyone they are sent to.
//
// A broadcast to ten thousand subscribers thus encodes once. The bytes are
// immutable, and whoever holds a Frame may call any method concurrently.
type Frame struct {
	message *Message // nil for a gap; immutable
	gap     *Gap     // nil for a message; immutable

	accepted time.Time     // when the daemon took the message; immutable
	ttl      time.Duration // the message's own life; 0 is as long as history keeps it; immutable

	encoded [formats]atomic.Pointer[[]byte] // each set once, under mu
	chunk   atomic.Pointer[[]byte]          // see Chunk; set once, under mu
	whole   atomic.Pointer[whole]           // see Whole; the newest, which leads to older ones; set under mu

	mu      sync.Mutex    // guards first encodings and the account
	account *atomic.Int64 // where bytes of encodings are counted; nil: nowhere
}

// NewMessageFrame returns the frame of m, which the caller must not change any
// more. The message was accepted at the given instant and lives for ttl, or as
// long as it is held if ttl is 0. Bytes of encodings are added to account, if
// it is not nil, until Release.
func NewMessageFrame(m *Message, accepted time.Time, ttl time.Duration, account *atomic.Int64) *Frame {
	return &Frame{message: m, accepted: accepted, ttl: ttl, account: account}
}

// NewGapFrame returns the frame of g.
func NewGapFrame(g Gap) *Frame { return &Frame{gap: &g} }

// Message returns the message, or nil if the frame is a gap.
func (f *Frame) Message() *Message { return f.message }

// Gap returns the gap, or nil if the frame is a message.
func (f *Frame) Gap() *Gap { return f.gap }

// Accepted returns when the daemon took the message; zero for a gap.
func (f *Frame) Accepted() time.Time { return f.accepted }

// Position returns where a subscriber is once it has this frame.
func (f *Frame) Position() Position {
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

// Bytes returns the frame in the given format, terminator included. The caller
// must not change them.
func (f *Frame) Bytes(format Format) []byte {
	// Fast path: someone encoded it before.
	if b := f.encoded[format].Load(); b != nil {
		return *b
	}
	return f.encode(format)
}

func (f *Frame) encode(format Format) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.encoded[format].Load(); b != nil {
		return *b
	}
	var b []byte
	if f.gap != nil {
		b = AppendGap(nil, f.gap)
	} else {
		b = AppendMessage(make([]byte, 0, jsonSizeHint(f.message)), f.message)
	}
	f.encoded[format].Store(&b)
	f.countLocked(len(b))
	return b
}

func (f *Frame) countLocked(bytes int) {
	if f.account != nil {
		f.account.Add(int64(bytes))
	}
}

// Release takes the frame's encodings off the account, because the history no
// longer holds it. Queues may hold the frame for a while yet.
func (f *Frame) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.account == nil {
		return
	}
	for i := range f.encoded {
		f.discountLocked(f.encoded[i].Load())
	}
	f.discountLocked(f.chunk.Load())
	f.discountWholesLocked(f.whole.Load())
	f.account = nil
}

func (f *Frame) discountLocked(b *[]byte) {
	if b != nil {
		f.account.Add(-int64(len(*b)))
	}
}
