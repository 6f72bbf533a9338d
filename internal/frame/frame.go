// Package frame encodes a message once for each format. All subscribers share the bytes.
package frame

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Frame is a message, a gap, moved positions, or the done of a history, with its encodings. Each is made when
// it is first needed. So a broadcast to ten thousand subscribers encodes once. All methods may be called
// concurrently. Nobody may change the bytes that they return.
type Frame struct {
	// Immutable.
	Accepted time.Time       // when the daemon accepted the message; zero without one
	TTL      time.Duration   // how long after that the message expires; 0: never
	message  *wire.Message   // nil for any other
	other    *wire.Content   // the gap, the moved or the done; nil for a message
	account  *memory.Account // counts the memory; nil: not counted

	encoded atomic.Pointer[encoding] // list, newest first; changed under mu
	pins    atomic.Int64             // queues that hold the frame, plus released

	deflating sync.Mutex // held by Deflated while it compresses; taken before mu

	mu        sync.Mutex // guards changes of the list, and uncounted
	uncounted bool       // encodings are no longer counted
}

// New returns the frame of a message, which must not change any more. The message was
// accepted at the given time and expires after ttl, unless that is 0. account may be nil.
// It counts the encodings until Release and the last Unpin, and the message in between.
func New(m *wire.Message, accepted time.Time, ttl time.Duration, account *memory.Account) *Frame {
	return &Frame{message: m, Accepted: accepted, TTL: ttl, account: account}
}

// NewGap returns the frame of a gap.
func NewGap(g wire.Gap) *Frame { return &Frame{other: &wire.Content{Gap: &g}} }

// NewMoved returns the frame that tells positions, at least one, for each topic at most one.
func NewMoved(positions []wire.Position) *Frame {
	return &Frame{other: &wire.Content{Moved: &wire.Moved{Positions: positions}}}
}

// NewDone returns the last frame of a history.
func NewDone(d wire.Done) *Frame { return &Frame{other: &wire.Content{Done: &d}} }

// Message returns the message, or nil if the frame has none.
func (f *Frame) Message() *wire.Message { return f.message }

// Gap returns the gap, or nil if the frame has none.
func (f *Frame) Gap() *wire.Gap {
	if f.other != nil {
		return f.other.Gap
	}
	return nil
}

// Moved returns the moved positions, or nil if the frame has none.
func (f *Frame) Moved() *wire.Moved {
	if f.other != nil {
		return f.other.Moved
	}
	return nil
}

// Counted returns how many of frames acks count: all but one that has moved positions, which is
// the last.
func Counted(frames []*Frame) int {
	n := len(frames)
	if n > 0 && frames[n-1].Moved() != nil {
		n--
	}
	return n
}

// Position returns where a subscriber is once it has the frame: of the first topic, if the frame
// has moved positions.
func (f *Frame) Position() wire.Position {
	switch {
	case f.message != nil:
		return f.message.Position
	case f.other.Gap != nil:
		return f.other.Gap.Position
	case f.other.Moved != nil:
		return f.other.Moved.Positions[0]
	}
	return f.other.Done.Position
}

// Expired reports whether the message has expired. Any other frame never does.
func (f *Frame) Expired(now time.Time) bool {
	return f.TTL > 0 && now.Sub(f.Accepted) >= f.TTL
}

// otherSize is about how many bytes the frame of a gap or a done takes. A moved frame takes so many
// for each position.
const otherSize = 160

// Size returns about how many bytes the frame takes in an answer and in memory.
func (f *Frame) Size() int {
	switch {
	case f.message != nil:
		return f.message.Size()
	case f.other.Moved != nil:
		return otherSize * len(f.other.Moved.Positions)
	}
	return otherSize
}

// A Limit bounds one read: at most Frames frames of about Bytes bytes, but at least one
// frame.
type Limit struct {
	Frames int
	Bytes  int
}

// Take subtracts f from the limit, and reports whether it fits.
func (l *Limit) Take(f *Frame, first bool) bool {
	if l.Frames <= 0 || (!first && f.Size() > l.Bytes) {
		return false
	}
	l.Frames--
	l.Bytes -= f.Size()
	return true
}

// An encoding is a frame in one form.
type encoding struct {
	form  form                     // immutable
	bytes []byte                   // immutable; nil: deflating does not pay
	older atomic.Pointer[encoding] // changed under the frame's mu
}

// Bytes returns the frame in a format.
func (f *Frame) Bytes(format Format) []byte { return f.in(form{format: format}) }

// Chunk returns the frame in a format as one chunk (RFC 9112, section 7.1).
func (f *Frame) Chunk(format Format) []byte { return f.in(form{format: format, chunk: true}) }

// maxWholes is for how many heads a frame keeps answers. A broadcast needs one for each
// origin whose pages receive it; with more origins answers are made again.
const maxWholes = 8

// Whole returns a whole answer: head, and the frame as the body. It is made when a head is
// first used and then shared. Answers of another second are dropped.
func (f *Frame) Whole(head *Head) []byte { return f.in(form{format: head.Format, head: head}) }

// in returns the frame in a form. If two goroutines make the same form at the same time,
// both get the bytes of the first.
func (f *Frame) in(form form) []byte {
	// Fast path: it was made before.
	if b, made := f.find(form); made {
		return b
	}
	b := form.encode(f)
	f.mu.Lock()
	defer f.mu.Unlock()
	if first, made := f.find(form); made {
		return first
	}
	// A whole answer replaces those of another second, and the oldest if there are too many.
	kept := 1 // the new one
	for at := &f.encoded; form.head != nil && at.Load() != nil; {
		switch e := at.Load(); {
		case e.form.head == nil:
			at = &e.older
		case e.form.head.Second == form.head.Second && kept < maxWholes:
			kept++
			at = &e.older
		default:
			at.Store(e.older.Load())
			f.countLocked(-len(e.bytes))
		}
	}
	e := &encoding{form: form, bytes: b}
	e.older.Store(f.encoded.Load())
	f.encoded.Store(e)
	f.countLocked(len(b))
	return b
}

// find returns the bytes of a form, if they were made. A frame has few forms.
func (f *Frame) find(form form) (b []byte, made bool) {
	for e := f.encoded.Load(); e != nil; e = e.older.Load() {
		if e.form == form {
			return e.bytes, true
		}
	}
	return nil, false
}

func (f *Frame) countLocked(bytes int) {
	if !f.uncounted {
		f.account.Add(memory.Encodings, int64(bytes))
	}
}

// released is added to Frame.pins when the history drops the frame.
const released = 1 << 32

// Pin notes that a queue holds the frame. Unpin must follow.
func (f *Frame) Pin() {
	pins := f.pins.Add(1)
	if f.account == nil || pins%released != 1 {
		return
	}
	f.account.Add(memory.Queued, int64(f.Size()))
	if pins == released+1 {
		f.account.Add(memory.Pinned, int64(f.Size())) // Release came first
	}
}

// Unpin ends a Pin.
func (f *Frame) Unpin() {
	pins := f.pins.Add(-1)
	if f.account != nil && pins%released == 0 {
		f.account.Add(memory.Queued, -int64(f.Size()))
	}
	if pins == released {
		f.uncount(-f.Size())
	}
}

// Release notes, once, that the history no longer holds the frame. Queues may still do.
func (f *Frame) Release() {
	if f.pins.Add(released) == released {
		f.uncount(0)
	} else {
		f.account.Add(memory.Pinned, int64(f.Size())) // the last Unpin may have subtracted it already
	}
}

// uncount removes the frame from the account. Whoever still writes it keeps its bytes.
func (f *Frame) uncount(pinned int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked()
	f.uncounted = true
	f.account.Add(memory.Pinned, int64(pinned))
}

// Forget drops the encodings to free memory. They are made again when they are needed.
func (f *Frame) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked()
}

func (f *Frame) forgetLocked() {
	for e := f.encoded.Swap(nil); e != nil; e = e.older.Load() {
		f.countLocked(-len(e.bytes))
	}
}
