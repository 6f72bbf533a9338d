package lane

import (
	"errors"
	"strconv"
	"sync"
	"syscall"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// An output is the writing side of a connection, a transport.Sink that never blocks.
// What the client does not take at once is its backlog, in order; nothing is written
// past that.
//
// It belongs to the connection's loop, which lends it while a poll waits; see conn.
type output struct {
	lane  *Lane        // immutable
	owner memory.Owner // immutable; of the backlog: the conn
	fd    int          // immutable; closed when nobody can write any more

	origin   int          // of the request that is answered; see cors.Policy
	format   frame.Format // of the answer's frames
	bare     bool         // no heads and no chunks, only frames
	deflates bool         // bare frames may be deflated, as a WebSocket's messages
	gzip     bool         // a whole answer may be in gzip
	chunked  bool         // the head of an answer of unknown length was written
	failed   bool         // nothing can be written any more
	backlog  *backlog     // nil: nothing waits
}

var errGone = errors.New("the client is gone")

// Whole implements transport.Sink.
func (o *output) Whole(lead []byte, frames []*frame.Frame) (int, error) {
	// Fast path: one frame, with a head that all share who are sent it in this second. What
	// the client does not take of that counts as its own: the next second has another copy.
	// So it is not for large frames.
	if len(frames) == 1 && len(lead) == 0 {
		if f := frames[0]; len(f.Bytes(o.format)) < chunkBytes {
			return len(f.Bytes(o.format)), o.write(f.Whole(o.headOf(f)))
		}
	}
	n := o.size(frames)
	s := takeScratch()
	defer s.free()
	if o.gzip {
		if m := frame.TakeMember(o.format, o.lane.cfg.Polls.CompressionMinBytes(), lead, frames); m != nil {
			defer m.Release()
			return n, o.writeMember(s, m)
		}
	}
	s.bytes = append(o.head().frames[o.format].Append(s.bytes, len(lead)+n), lead...)
	return n, o.writeFrames(s, frames, plain)
}

// headOf is the head of the answer that is f alone.
func (o *output) headOf(f *frame.Frame) *frame.Head {
	if o.gzip {
		if block, pays := f.Deflated(o.format, o.lane.cfg.Polls.CompressionMinBytes()); pays {
			o.lane.cfg.Metrics.Compressed(len(f.Bytes(o.format)), frame.MemberSize(block))
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
		return len(frames[0].Bytes(o.format)), o.writePart(o.part(frames[0], chunk))
	}
	s := takeScratch()
	defer s.free()
	if !o.chunked {
		o.chunked = true
		s.bytes = append(s.bytes, o.head().streams[o.format]...)
	}
	if len(lead) > 0 {
		s.bytes = frame.AppendChunk(s.bytes, lead)
	}
	n := 0
	for len(frames) > 0 {
		together, size := o.together(frames)
		n += size
		if err := o.addChunk(s, frames[:together], size); err != nil {
			return n, err
		}
		frames = frames[together:]
	}
	return n, o.writeScratch(s)
}

// sendBare is Send where a connection has nothing but frames.
func (o *output) sendBare(lead []byte, frames []*frame.Frame) (int, error) {
	// Fast path: one frame.
	if len(frames) == 1 && len(lead) == 0 && !o.deflates {
		b := frames[0].Bytes(o.format)
		return len(b), o.writePart(part{b, frames[0], plain})
	}
	s := takeScratch()
	defer s.free()
	s.bytes = append(s.bytes, lead...)
	if !o.deflates {
		return o.size(frames), o.writeFrames(s, frames, plain)
	}
	n, least := 0, o.lane.cfg.Polls.CompressionMinBytes()
	for _, f := range frames {
		n += len(f.Bytes(o.format.OffSocket())) // what is counted is how large they are without
		p := part{o.lane.cfg.Polls.SocketMessage(f, o.format, least), f, asIs}
		if err := o.add(s, p); err != nil {
			return n, err
		}
	}
	return n, o.writeScratch(s)
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

// addChunk adds frames as one chunk. Once the client does not read, each is a chunk: it
// exists already, and refers to no memory of this client's.
func (o *output) addChunk(s *scratch, frames []*frame.Frame, size int) error {
	if len(frames) == 1 || o.Blocked() {
		return o.addFrames(s, frames, chunk)
	}
	s.bytes = append(strconv.AppendInt(s.bytes, int64(size), 16), "\r\n"...)
	for _, f := range frames {
		s.append(o.part(f, plain))
	}
	s.bytes = append(s.bytes, "\r\n"...)
	if len(s.bytes) < atOnceBytes {
		return nil
	}
	return o.writeScratch(s)
}

// writeFrames writes a scratch and frames.
func (o *output) writeFrames(s *scratch, frames []*frame.Frame, in shape) error {
	if err := o.addFrames(s, frames, in); err != nil {
		return err
	}
	return o.writeScratch(s)
}

// addFrames adds frames to a scratch.
func (o *output) addFrames(s *scratch, frames []*frame.Frame, in shape) error {
	for _, f := range frames {
		if err := o.add(s, o.part(f, in)); err != nil {
			return err
		}
	}
	return nil
}

// add adds a part to a scratch, or writes it behind the scratch if it is large or the
// client does not read.
func (o *output) add(s *scratch, p part) error {
	if len(s.bytes)+len(p.bytes) < atOnceBytes && !o.Blocked() {
		s.append(p)
		return nil
	}
	if err := o.writeScratch(s); err != nil {
		return err
	}
	return o.writePart(p)
}

// writeMember writes m as a whole answer.
func (o *output) writeMember(s *scratch, m *frame.Member) error {
	o.lane.cfg.Metrics.Compressed(m.Raw(), m.Size())
	s.bytes = o.head().gzipped[o.format].Append(s.bytes, m.Size())
	for _, p := range m.Parts() {
		if p.Frame == nil { // m is released before the client reads it
			s.bytes = append(s.bytes, p.Bytes...)
		} else if err := o.add(s, part{p.Bytes, p.Frame, asIs}); err != nil {
			return err
		}
	}
	return o.writeScratch(s)
}

// endChunks ends an answer of unknown length.
func (o *output) endChunks() error {
	o.chunked = false
	return o.write(lastChunk)
}

var lastChunk = []byte("0\r\n\r\n")

// write writes own bytes, which must not change any more.
func (o *output) write(b []byte) error { return o.writePart(part{bytes: b}) }

// writePart writes a part. What the client does not take becomes backlog.
func (o *output) writePart(p part) error {
	n := 0
	if !o.Blocked() {
		n = o.put(p.bytes)
	}
	if o.failed {
		return errGone
	}
	if n < len(p.bytes) {
		o.keep(p, n)
	}
	return nil
}

// writeScratch writes a scratch and empties it.
func (o *output) writeScratch(s *scratch) error {
	if len(s.bytes) == 0 {
		return nil
	}
	n := 0
	if !o.Blocked() {
		n = o.put(s.bytes)
	}
	if o.failed {
		return errGone
	}
	if n < len(s.bytes) {
		o.keepRest(s, n)
	}
	s.empty()
	return nil
}

// atOnceBytes is about how much is written at a time.
const atOnceBytes = 64 << 10

// put writes what the client takes of b now, and returns how much.
func (o *output) put(b []byte) (n int) {
	for n < len(b) && !o.failed {
		took, errno := rawWrite(o.fd, b[n:min(len(b), n+atOnceBytes)])
		if errno == syscall.EAGAIN {
			break
		}
		switch errno {
		case 0:
			n += took
		case syscall.EINTR:
		default:
			o.failed = true
			o.dropBacklog()
		}
	}
	o.lane.cfg.Metrics.BytesOut.Add(float64(n))
	return n
}

// Blocked implements transport.Parking.
func (o *output) Blocked() bool { return o.backlog != nil }

// flush writes what the client takes now of the backlog.
func (o *output) flush() {
	for o.Blocked() {
		s := takeScratch()
		b := o.next(s)
		n := o.put(b)
		s.free()
		if o.failed {
			return
		}
		o.took(n)
		if n < len(b) {
			return
		}
	}
}

// scratch is memory to put an answer together in.
type scratch struct {
	bytes  []byte
	parts  []part // of frames, that were copied to bytes
	begins []int  // where
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func takeScratch() *scratch { return scratches.Get().(*scratch) }

// append copies a frame's part.
func (s *scratch) append(p part) {
	s.parts, s.begins = append(s.parts, p), append(s.begins, len(s.bytes))
	s.bytes = append(s.bytes, p.bytes...)
}

func (s *scratch) empty() {
	clear(s.parts)
	s.bytes, s.parts, s.begins = s.bytes[:0], s.parts[:0], s.begins[:0]
}

// maxScratch is how large a scratch is kept for later.
const maxScratch = 2 * atOnceBytes

// free gives the scratch back. Nothing refers to its memory.
func (s *scratch) free() {
	s.empty()
	if cap(s.bytes) <= maxScratch {
		scratches.Put(s)
	}
}
