package lane

import (
	"bytes"
	"errors"
	"strconv"
	"sync"
	"syscall"

	"github.com/pubsubd/pubsubd/internal/frame"
)

// An output is the writing side of a connection. It implements the writing part of
// transport.Parking.
//
// It belongs to one at a time: to whoever holds the connection's lock or, while a
// poll is parked on the connection, the lock of that poll's session or, while a
// poll waits in a goroutine, to that. What a write leaves over is kept, in order,
// and nothing is written past it until it is flushed.
type output struct {
	lane *Lane // immutable
	fd   int   // immutable; closed when nobody can write any more

	origin   int          // of the request that is answered; see cors.Policy
	format   frame.Format // of the frames of its answer
	bare     bool         // there are no heads and no chunks, only frames
	deflates bool         // which may be deflated, as a WebSocket's messages
	gzip     bool         // which may be in gzip, if it is whole
	chunked  bool         // the head of an answer of unknown length was written
	failed   bool         // nothing can be written any more
	kept     [][]byte     // not written yet
}

var errGone = errors.New("the client is gone")

// Whole implements transport.Sink.
func (o *output) Whole(lead []byte, frames []*frame.Frame) (int, error) {
	// Fast path: one frame, whose bytes are shared with everyone who is sent it.
	if len(frames) == 1 && len(lead) == 0 {
		return len(frames[0].Bytes(o.format)), o.write(frames[0].Whole(o.headOf(frames[0])))
	}
	n := o.size(frames)
	if o.gzip {
		if m := frame.TakeMember(o.format, o.lane.polls.CompressionMinBytes(), lead, frames); m != nil {
			defer m.Release()
			return n, o.writeMember(m)
		}
	}
	b := takeScratch()
	b.bytes = append(o.head().frames[o.format].Append(b.bytes, len(lead)+n), lead...)
	return n, o.writeAll(b, frames)
}

// headOf is the head of the answer that is f alone.
func (o *output) headOf(f *frame.Frame) *frame.Head {
	if o.gzip {
		if block, pays := f.Deflated(o.format, o.lane.polls.CompressionMinBytes()); pays {
			o.lane.metrics.Compressed(len(f.Bytes(o.format)), frame.MemberSize(block))
			return o.head().gzipped[o.format]
		}
	}
	return o.head().frames[o.format]
}

// size is how many bytes frames have by themselves.
func (o *output) size(frames []*frame.Frame) int {
	n := 0
	for _, f := range frames {
		n += len(f.Bytes(o.format))
	}
	return n
}

// head is of answers to the request, in this second.
func (o *output) head() *head { return &o.lane.heads.Load().of[o.origin] }

// Send implements transport.Sink.
func (o *output) Send(lead []byte, frames []*frame.Frame) (int, error) {
	if o.bare {
		return o.sendBare(lead, frames)
	}
	// Fast path: one frame of a stream.
	if o.chunked && len(frames) == 1 && len(lead) == 0 {
		return len(frames[0].Bytes(o.format)), o.write(frames[0].Chunk(o.format))
	}
	b := takeScratch()
	if !o.chunked {
		o.chunked = true
		b.bytes = append(b.bytes, o.head().streams[o.format]...)
	}
	if len(lead) > 0 {
		b.bytes = frame.AppendChunk(b.bytes, lead)
	}
	n := 0
	for len(frames) > 0 {
		together, size := o.together(frames)
		n += size
		var err error
		if b, err = o.writeChunk(b, frames[:together], size); err != nil {
			return n, err
		}
		frames = frames[together:]
	}
	return n, o.writeScratch(b)
}

// sendBare is Send where a connection has nothing but frames.
func (o *output) sendBare(lead []byte, frames []*frame.Frame) (int, error) {
	if o.deflates {
		return o.sendDeflated(lead, frames)
	}
	// Fast path: one frame.
	if len(frames) == 1 && len(lead) == 0 {
		b := frames[0].Bytes(o.format)
		return len(b), o.write(b)
	}
	b := takeScratch()
	b.bytes = append(b.bytes, lead...)
	return o.size(frames), o.writeAll(b, frames)
}

// sendDeflated is sendBare where a WebSocket's messages may be deflated. What it
// returns is how large they are if they are not.
func (o *output) sendDeflated(lead []byte, frames []*frame.Frame) (n int, err error) {
	for _, f := range frames {
		n += len(f.Bytes(o.format.OffSocket()))
	}
	b := takeScratch()
	b.bytes = append(b.bytes, lead...)
	least := o.lane.polls.CompressionMinBytes()
	b, err = o.writeParts(b, frames, func(f *frame.Frame) []byte { return o.lane.polls.SocketMessage(f, o.format, least) })
	if err != nil {
		return n, err
	}
	return n, o.writeScratch(b)
}

// together is how many of frames are written as one chunk, which is less to read for
// the client than a chunk for each; and their size. Large ones stand alone.
func (o *output) together(frames []*frame.Frame) (count, size int) {
	size = len(frames[0].Bytes(o.format))
	for count = 1; count < len(frames); count++ {
		next := len(frames[count].Bytes(o.format))
		if size+next > chunkBytes {
			break
		}
		size += next
	}
	return count, size
}

// chunkBytes is how many bytes of several frames are copied into one chunk.
const chunkBytes = 16 << 10

// writeChunk writes frames as one chunk, behind what b holds. It returns the scratch
// to go on with, which has yet to be written.
func (o *output) writeChunk(b *scratch, frames []*frame.Frame, size int) (*scratch, error) {
	if len(frames) == 1 || o.Blocked() {
		return o.writeParts(b, frames, func(f *frame.Frame) []byte { return f.Chunk(o.format) })
	}
	b.bytes = append(strconv.AppendInt(b.bytes, int64(size), 16), "\r\n"...)
	for _, f := range frames {
		b.bytes = append(b.bytes, f.Bytes(o.format)...)
	}
	b.bytes = append(b.bytes, "\r\n"...)
	if len(b.bytes) < atOnceBytes {
		return b, nil
	}
	return takeScratch(), o.writeScratch(b)
}

// writeAll writes b and frames.
func (o *output) writeAll(b *scratch, frames []*frame.Frame) error {
	b, err := o.writeParts(b, frames, func(f *frame.Frame) []byte { return f.Bytes(o.format) })
	if err != nil {
		return err
	}
	return o.writeScratch(b)
}

// writeParts writes b and what bytes makes of frames, but for what the scratch that it
// returns holds. A large frame's bytes are not copied, nor is any once something has
// to be kept: many share them, and a copy for each client that does not read would
// have no bound.
func (o *output) writeParts(b *scratch, frames []*frame.Frame, bytes func(*frame.Frame) []byte) (*scratch, error) {
	for _, f := range frames {
		var err error
		if b, err = o.writePart(b, bytes(f)); err != nil {
			return b, err
		}
	}
	return b, nil
}

// writePart is writeParts for bytes that many share.
func (o *output) writePart(b *scratch, part []byte) (*scratch, error) {
	if len(b.bytes)+len(part) < atOnceBytes && !o.Blocked() {
		b.bytes = append(b.bytes, part...)
		return b, nil
	}
	if err := o.writeScratch(b); err != nil {
		return b, err
	}
	if err := o.write(part); err != nil {
		return b, err
	}
	return takeScratch(), nil
}

// writeMember writes a whole answer that is m.
func (o *output) writeMember(m *frame.Member) error {
	o.lane.metrics.Compressed(m.Raw(), m.Size())
	b := takeScratch()
	b.bytes = o.head().gzipped[o.format].Append(b.bytes, m.Size())
	for _, p := range m.Parts() {
		var err error
		switch {
		case p.Shared:
			b, err = o.writePart(b, p.Bytes)
		case o.Blocked():
			err = o.write(bytes.Clone(p.Bytes)) // a few; m is released before they are flushed
		default:
			b.bytes = append(b.bytes, p.Bytes...)
		}
		if err != nil {
			return err
		}
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

// Blocked implements transport.Parking.
func (o *output) Blocked() bool { return len(o.kept) > 0 }

// flush writes what the connection takes now of what was kept. Small parts, of which a
// slow client may have thousands, are written together.
func (o *output) flush() {
	for len(o.kept) > 0 {
		together := takeScratch()
		b := o.kept[0]
		if len(b) < chunkBytes {
			b = together.gather(o.kept)
		}
		took := len(b) - len(o.put(b))
		scratches.Put(together)
		if o.failed {
			return // nothing is kept any more
		}
		o.taken(took)
		if took < len(b) {
			return
		}
	}
	o.kept = nil
}

// gather returns what parts begin with, as much as is written at a time.
func (s *scratch) gather(parts [][]byte) []byte {
	for _, part := range parts {
		if len(s.bytes)+len(part) > atOnceBytes {
			break
		}
		s.bytes = append(s.bytes, part...)
	}
	return s.bytes
}

// taken takes the first n bytes off what is kept.
func (o *output) taken(n int) {
	for n > 0 && n >= len(o.kept[0]) {
		n -= len(o.kept[0])
		o.kept[0] = nil
		o.kept = o.kept[1:]
	}
	if n > 0 {
		o.kept[0] = o.kept[0][n:]
	}
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
