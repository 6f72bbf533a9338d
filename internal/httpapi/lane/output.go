package lane

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An output is the writing side of a connection. It implements the writing part of
// transport.Connection.
//
// It belongs to one at a time: to the connection's goroutine or, while a poll is
// parked on the connection, to whoever holds the lock of that poll's session.
// What a write leaves over is kept, in order, and nothing is written past it: the
// connection's goroutine flushes it.
type output struct {
	lane *Lane           // immutable
	nc   Conn            // immutable
	raw  syscall.RawConn // of nc; immutable

	try, wait func(fd uintptr) bool // tryWrite and waitWrite, bound once
	next      []byte                // what the two write from
	failure   error                 // of the descriptor

	chunked bool     // the head of an answer of unknown length was written
	kept    [][]byte // not written yet
}

var errGone = errors.New("the client is gone")

func (o *output) bind() { o.try, o.wait = o.tryWrite, o.waitWrite }

// Whole implements transport.Answer.
func (o *output) Whole(lead []byte, frames []*wire.Frame) (int, error) {
	head := &o.lane.heads.Load().frames
	// Fast path: one frame, whose bytes are shared with everyone who is sent it.
	if len(frames) == 1 && len(lead) == 0 {
		return len(frames[0].Bytes(wire.NDJSON)), o.write(frames[0].Whole(head))
	}
	size := len(lead)
	for _, f := range frames {
		size += len(f.Bytes(wire.NDJSON))
	}
	b := takeScratch()
	b.bytes = append(head.Append(b.bytes, size), lead...)
	for _, f := range frames {
		b.bytes = append(b.bytes, f.Bytes(wire.NDJSON)...)
	}
	return size - len(lead), o.writeScratch(b)
}

// Send implements transport.Answer.
func (o *output) Send(lead []byte, frames []*wire.Frame) (int, error) {
	// Fast path: one frame of a stream.
	if o.chunked && len(frames) == 1 && len(lead) == 0 {
		return len(frames[0].Bytes(wire.NDJSON)), o.write(frames[0].Chunk())
	}
	b := takeScratch()
	if !o.chunked {
		o.chunked = true
		b.bytes = append(b.bytes, o.lane.heads.Load().stream...)
	}
	if len(lead) > 0 {
		b.bytes = wire.AppendChunk(b.bytes, lead)
	}
	n := 0
	for _, f := range frames {
		b.bytes = append(b.bytes, f.Chunk()...)
		n += len(f.Bytes(wire.NDJSON))
	}
	return n, o.writeScratch(b)
}

// endChunks ends an answer of unknown length, if one has begun.
func (o *output) endChunks() error {
	if !o.chunked {
		return nil
	}
	o.chunked = false
	if err := o.write(lastChunk); err != nil {
		return err
	}
	return o.Flush()
}

var lastChunk = []byte("0\r\n\r\n")

// write writes what the connection takes of b now and keeps the rest. b must not
// change until it is flushed.
func (o *output) write(b []byte) error {
	if len(o.kept) > 0 {
		o.kept = append(o.kept, b)
		return nil
	}
	o.next = b
	if err := o.through(o.try); err != nil {
		return err
	}
	if len(o.next) > 0 {
		o.kept = append(o.kept, o.next)
	}
	o.next = nil
	return nil
}

// through lets f write from next.
func (o *output) through(f func(fd uintptr) bool) error {
	before := len(o.next)
	err := o.raw.Write(f)
	o.lane.metrics.BytesOut.Add(float64(before - len(o.next)))
	if err == nil {
		err = o.failure
	}
	if err != nil {
		o.next, o.kept = nil, nil
	}
	return err
}

// tryWrite writes once.
func (o *output) tryWrite(fd uintptr) bool {
	o.writeNext(fd)
	return true
}

// waitWrite writes until nothing is left.
func (o *output) waitWrite(fd uintptr) bool {
	o.writeNext(fd)
	return o.failure != nil || len(o.next) == 0
}

func (o *output) writeNext(fd uintptr) {
	for len(o.next) > 0 && o.failure == nil {
		n, errno := rawWrite(fd, o.next)
		switch {
		case errno == syscall.EAGAIN:
			return
		case errno == syscall.EINTR:
		case errno != 0:
			o.failure = errGone
		default:
			o.next = o.next[n:]
		}
	}
}

// Kept implements transport.Connection.
func (o *output) Kept() bool { return len(o.kept) > 0 }

// Flush implements transport.Connection.
func (o *output) Flush() error {
	if len(o.kept) == 0 {
		return o.failure
	}
	if err := o.nc.SetWriteDeadline(time.Now().Add(o.lane.writeTimeout)); err != nil {
		return err
	}
	for len(o.kept) > 0 {
		o.next, o.kept = o.kept[0], o.kept[1:]
		if err := o.through(o.wait); err != nil {
			return err
		}
	}
	o.kept, o.next = nil, nil
	return o.nc.SetWriteDeadline(time.Time{})
}

// scratch is memory for an answer that is put together.
type scratch struct{ bytes []byte }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func takeScratch() *scratch {
	s := scratches.Get().(*scratch)
	s.bytes = s.bytes[:0]
	return s
}

// maxScratch is how large a scratch is kept for later.
const maxScratch = 64 << 10

// writeScratch writes s, whose memory goes back unless some of it is kept.
func (o *output) writeScratch(s *scratch) error {
	err := o.write(s.bytes)
	if err == nil && len(o.kept) == 0 && cap(s.bytes) <= maxScratch {
		scratches.Put(s)
	}
	return err
}
