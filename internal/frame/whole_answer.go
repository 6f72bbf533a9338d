package frame

import "strconv"

// A Head is what precedes the body of an HTTP answer whose length is known, with that
// length in the middle. It is immutable: another date, format or origin needs another Head.
type Head struct {
	Format                    Format // of the body
	Gzip                      bool   // the body is one gzip member, which must pay; see Frame.Deflated
	BeforeLength, AfterLength []byte

	Second int64 // of its date; several heads of one second are in use at the same time
}

// Append appends the head of an answer whose body has the given length.
func (h *Head) Append(dst []byte, length int) []byte {
	dst = append(dst, h.BeforeLength...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	return append(dst, h.AfterLength...)
}

// maxWholes is for how many heads a frame keeps answers. A broadcast needs one for each
// origin whose pages receive it; with more origins answers are made again.
const maxWholes = 8

// Whole returns a whole answer: head, and the frame as the body. It is made when a head is
// first used and then shared. Answers of another second are dropped.
func (f *Frame) Whole(head *Head) []byte { return f.in(form{format: head.Format, head: head}) }

// wholeOf returns the frame as the body of a whole answer.
func (h *Head) wholeOf(f *Frame) []byte {
	size, body := len(f.Bytes(h.Format)), []Part{{Bytes: f.Bytes(h.Format)}}
	if h.Gzip {
		m := TakeGzipMember(h.Format, 0, nil, []*Frame{f})
		defer m.Release()
		size, body = m.Size(), m.Parts()
	}
	const digits = 8
	b := h.Append(make([]byte, 0, len(h.BeforeLength)+digits+len(h.AfterLength)+size), size)
	for _, p := range body {
		b = append(b, p.Bytes...)
	}
	return b
}

// dropWholesLocked drops the whole answers that a new one replaces: those of another
// second, and the oldest if there are too many.
func (f *Frame) dropWholesLocked(second int64) {
	kept := 1 // the new one
	for at := &f.encoded; at.Load() != nil; {
		e := at.Load()
		switch {
		case e.form.head == nil:
			at = &e.older
		case e.form.head.Second == second && kept < maxWholes:
			kept++
			at = &e.older
		default:
			at.Store(e.older.Load())
			f.countLocked(-len(e.bytes))
		}
	}
}
