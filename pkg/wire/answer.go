package wire

import "strconv"

// A Head is what stands before the body of an HTTP answer whose length is known,
// and around that length. It is immutable: an answer with another date, format or
// origin has another Head.
type Head struct{ BeforeLength, AfterLength []byte }

// Append appends the head of an answer with so many bytes of body.
func (h *Head) Append(dst []byte, length int) []byte {
	dst = append(dst, h.BeforeLength...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	return append(dst, h.AfterLength...)
}

// whole is a frame that is a whole answer under one head.
type whole struct {
	head  *Head
	bytes []byte
}

// Whole returns the frame in NDJSON as a whole answer under head. The bytes are
// made when a head is first asked for, and shared until another is: a burst asks
// for one. The caller must not change them.
func (f *Frame) Whole(head *Head) []byte {
	// Fast path: someone was sent the same.
	if w := f.whole.Load(); w != nil && w.head == head {
		return w.bytes
	}
	return f.makeWhole(head)
}

func (f *Frame) makeWhole(head *Head) []byte {
	line := f.Bytes(NDJSON)
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.whole.Load()
	if old != nil && old.head == head {
		return old.bytes
	}
	const digits = 8
	b := make([]byte, 0, len(head.BeforeLength)+digits+len(head.AfterLength)+len(line))
	b = append(head.Append(b, len(line)), line...)
	f.whole.Store(&whole{head: head, bytes: b})
	f.countLocked(len(b))
	if old != nil {
		f.countLocked(-len(old.bytes))
	}
	return b
}

// Chunk returns the frame in NDJSON as one chunk (RFC 9112, section 7.1), made
// once and shared. The caller must not change the bytes.
func (f *Frame) Chunk() []byte {
	// Fast path: someone was sent it before.
	if b := f.chunk.Load(); b != nil {
		return *b
	}
	line := f.Bytes(NDJSON)
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.chunk.Load(); b != nil {
		return *b
	}
	b := AppendChunk(make([]byte, 0, len(line)+8), line)
	f.chunk.Store(&b)
	f.countLocked(len(b))
	return b
}

// AppendChunk appends data as one chunk. It must not be empty: an empty chunk is
// the end.
func AppendChunk(dst, data []byte) []byte {
	dst = strconv.AppendInt(dst, int64(len(data)), 16)
	dst = append(dst, "\r\n"...)
	dst = append(dst, data...)
	return append(dst, "\r\n"...)
}
