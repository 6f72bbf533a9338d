package frame

import (
	"strconv"
	"sync/atomic"
)

// A Head is what stands before the body of an HTTP answer whose length is known,
// and around that length. It is immutable: an answer with another date, format or
// origin has another Head.
type Head struct {
	Format                    Format // of the body
	Gzip                      bool   // and it is one gzip member
	BeforeLength, AfterLength []byte

	Second int64 // of its date; heads of one second are in use side by side
}

// Append appends the head of an answer with so many bytes of body.
func (h *Head) Append(dst []byte, length int) []byte {
	dst = append(dst, h.BeforeLength...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	return append(dst, h.AfterLength...)
}

// A whole is a frame that is a whole answer under one head, in a list from the
// newest head to the oldest.
type whole struct {
	head  *Head
	bytes []byte
	older atomic.Pointer[whole] // cut off under the frame's mu
}

// maxWholes is how many heads a frame is kept under: pages of a few origins are
// sent the same message, of more in turn it is copied anew.
const maxWholes = 8

// Whole returns the frame as a whole answer under head. The bytes are
// made when a head is first asked for, and shared: a burst asks for one head for
// each origin whose pages are sent it. Heads of another second replace those
// before. The caller must not change the bytes.
func (f *Frame) Whole(head *Head) []byte {
	// Fast path: someone was sent the same.
	if w := f.wholeUnder(head); w != nil {
		return w.bytes
	}
	return f.makeWhole(head)
}

func (f *Frame) wholeUnder(head *Head) *whole {
	w := f.whole.Load()
	for w != nil && w.head != head {
		w = w.older.Load()
	}
	return w
}

func (f *Frame) makeWhole(head *Head) []byte {
	body := f.body(head)
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.wholeUnder(head); w != nil {
		return w.bytes
	}
	const digits = 8
	b := make([]byte, 0, len(head.BeforeLength)+digits+len(head.AfterLength)+len(body))
	b = append(head.Append(b, len(body)), body...)
	f.addWholeLocked(&whole{head: head, bytes: b})
	return b
}

func (f *Frame) body(head *Head) []byte {
	if head.Gzip {
		return f.inGzip(head.Format)
	}
	return f.Bytes(head.Format)
}

// addWholeLocked puts w before the others, of which the oldest goes when there are
// too many, and all go that are of another second.
func (f *Frame) addWholeLocked(w *whole) {
	f.countLocked(len(w.bytes))
	if newest := f.whole.Load(); newest != nil && newest.head.Second == w.head.Second {
		w.older.Store(newest)
	} else {
		f.discountWholesLocked(newest)
	}
	f.whole.Store(w)
	for range maxWholes - 1 {
		if w = w.older.Load(); w == nil {
			return
		}
	}
	f.discountWholesLocked(w.older.Swap(nil))
}

func (f *Frame) discountWholesLocked(w *whole) {
	for ; w != nil; w = w.older.Load() {
		f.countLocked(-len(w.bytes))
	}
}
