package frame

import (
	"strconv"
	"sync/atomic"
)

// A Head is what precedes the body of an HTTP answer whose length is known, with that
// length in the middle. It is immutable: another date, format or origin needs another Head.
type Head struct {
	Format                    Format // of the body
	Gzip                      bool   // the body is one gzip member
	BeforeLength, AfterLength []byte

	Second int64 // of its date; several heads of one second are in use at the same time
}

// Append appends the head of an answer whose body has the given length.
func (h *Head) Append(dst []byte, length int) []byte {
	dst = append(dst, h.BeforeLength...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	return append(dst, h.AfterLength...)
}

// A whole is a frame as the only one of an answer, with the head.
type whole struct {
	head  *Head
	bytes []byte
	older atomic.Pointer[whole] // cleared under the frame's mu
}

// maxWholes is for how many heads a frame keeps answers. A broadcast needs one for each
// origin whose pages receive it; with more origins answers are made again.
const maxWholes = 8

// Whole returns a whole answer: head, and the frame as the body. It is made when a head is
// first used and then shared. Answers of another second are dropped.
func (f *Frame) Whole(head *Head) []byte {
	// Fast path: it was made before.
	if w := f.findWhole(head); w != nil {
		return w.bytes
	}
	var body []byte
	if head.Gzip {
		body = f.inGzip(head.Format)
	} else {
		body = f.Bytes(head.Format)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.findWhole(head); w != nil {
		return w.bytes
	}
	const digits = 8
	b := make([]byte, 0, len(head.BeforeLength)+digits+len(head.AfterLength)+len(body))
	b = append(head.Append(b, len(body)), body...)
	f.addWholeLocked(&whole{head: head, bytes: b})
	return b
}

func (f *Frame) findWhole(head *Head) *whole {
	w := f.wholes.Load()
	for w != nil && w.head != head {
		w = w.older.Load()
	}
	return w
}

// addWholeLocked puts w first, and drops the others if they are of another second, or the
// oldest if there are too many.
func (f *Frame) addWholeLocked(w *whole) {
	f.countLocked(len(w.bytes))
	if newest := f.wholes.Load(); newest != nil && newest.head.Second == w.head.Second {
		w.older.Store(newest)
	} else {
		f.discountLocked(newest)
	}
	f.wholes.Store(w)
	for range maxWholes - 1 {
		if w = w.older.Load(); w == nil {
			return
		}
	}
	f.discountLocked(w.older.Swap(nil))
}

// discountLocked takes the answers from w on off the account.
func (f *Frame) discountLocked(w *whole) {
	for ; w != nil; w = w.older.Load() {
		f.countLocked(-len(w.bytes))
	}
}
