package lane

import (
	"errors"
	"sync"
	"syscall"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An output is the writing side of a connection. It implements the writing part of
// transport.Connection.
//
// It belongs to one at a time: to whoever holds the connection's lock or, while a
// poll is parked on the connection, the lock of that poll's session or, while a
// poll waits in a goroutine, to that. What a write leaves over is kept, in order,
// and nothing is written past it until it is flushed.
type output struct {
	lane *Lane // immutable
	fd   int   // immutable; closed when nobody can write any more

	origin  int      // of the request that is answered; see cors.Policy
	chunked bool     // the head of an answer of unknown length was written
	failed  bool     // nothing can be written any more
	kept    [][]byte // not written yet
}

var errGone = errors.New("the client is gone")

// Whole implements transport.Answer.
func (o *output) Whole(lead []byte, frames []*wire.Frame) (int, error) {
	head := o.head().frames
	// Fast path: one frame, whose bytes are shared with everyone who is sent it.
	if len(frames) == 1 && len(lead) == 0 {
		return len(frames[0].Bytes(wire.NDJSON)), o.write(frames[0].Whole(head))
	}
	n := 0
	for _, f := range frames {
		n += len(f.Bytes(wire.NDJSON))
	}
	b := takeScratch()
	b.bytes = append(head.Append(b.bytes, len(lead)+n), lead...)
	return n, o.writeAll(b, frames, ofNDJSON)
}

// head is of answers to the request, in this second.
func (o *output) head() *head { return &o.lane.heads.Load().of[o.origin] }

// Send implements transport.Answer.
func (o *output) Send(lead []byte, frames []*wire.Frame) (int, error) {
	// Fast path: one frame of a stream.
	if o.chunked && len(frames) == 1 && len(lead) == 0 {
		return len(frames[0].Bytes(wire.NDJSON)), o.write(frames[0].Chunk())
	}
	b := takeScratch()
	if !o.chunked {
		o.chunked = true
		b.bytes = append(b.bytes, o.head().stream...)
	}
	if len(lead) > 0 {
		b.bytes = wire.AppendChunk(b.bytes, lead)
	}
	n := 0
	for _, f := range frames {
		n += len(f.Bytes(wire.NDJSON))
	}
	return n, o.writeAll(b, frames, (*wire.Frame).Chunk)
}

func ofNDJSON(f *wire.Frame) []byte { return f.Bytes(wire.NDJSON) }

// writeAll writes b and what bytes makes of frames. A large frame's bytes are not
// copied, nor is any once something has to be kept: many share them, and a copy
// for each client that does not read would have no bound.
func (o *output) writeAll(b *scratch, frames []*wire.Frame, bytes func(*wire.Frame) []byte) error {
	for _, f := range frames {
		part := bytes(f)
		if len(b.bytes)+len(part) < atOnceBytes && !o.Kept() {
			b.bytes = append(b.bytes, part...)
			continue
		}
		if err := o.writeScratch(b); err != nil {
			return err
		}
		if err := o.write(part); err != nil {
			return err
		}
		b = takeScratch()
	}
	return o.writeScratch(b)
}

// endChunks ends an answer of unknown length.
func (o *output) endChunks() error {
	o.chunked = false
	return o.write(lastChunk)
}

var lastChunk = []byte("0\r\n\r\n")

// write writes what the connection takes of b now and keeps the rest. b must not
// change until it is flushed.
func (o *output) write(b []byte) error {
	if len(o.kept) == 0 {
		b = o.put(b)
	}
	if o.failed {
		return errGone
	}
	if len(b) > 0 {
		o.kept = append(o.kept, b)
	}
	return nil
}

// atOnceBytes is about how much is written at a time.
const atOnceBytes = 64 << 10

// put writes what the connection takes of b now and returns the rest.
func (o *output) put(b []byte) []byte {
	before := len(b)
	for len(b) > 0 && !o.failed {
		n, errno := rawWrite(o.fd, b[:min(len(b), atOnceBytes)])
		if errno == syscall.EAGAIN {
			break
		}
		switch errno {
		case 0:
			b = b[n:]
		case syscall.EINTR:
		default:
			o.failed, o.kept = true, nil
		}
	}
	o.lane.metrics.BytesOut.Add(float64(before - len(b)))
	return b
}

// Kept implements transport.Connection.
func (o *output) Kept() bool { return len(o.kept) > 0 }

// flush writes what the connection takes now of what was kept.
func (o *output) flush() {
	for len(o.kept) > 0 {
		rest := o.put(o.kept[0])
		switch {
		case o.failed: // nothing is kept any more
		case len(rest) > 0:
			o.kept[0] = rest
			return
		default:
			o.kept[0] = nil
			o.kept = o.kept[1:]
		}
	}
	o.kept = nil
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
const maxScratch = 2 * atOnceBytes

// writeScratch writes s, whose memory goes back unless some of it is kept.
func (o *output) writeScratch(s *scratch) error {
	if len(s.bytes) == 0 {
		scratches.Put(s)
		return nil
	}
	err := o.write(s.bytes)
	if err == nil && len(o.kept) == 0 && cap(s.bytes) <= maxScratch {
		scratches.Put(s)
	}
	return err
}
