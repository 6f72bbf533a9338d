package lane

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/observe"
)

// An output is the writing side of a connection, a transport.Sink that never blocks. The
// bytes that the client does not take at once are its backlog. Later bytes wait behind
// the backlog.
//
// An output belongs to the connection's loop, which lends it while a poll waits; see conn.
type output struct {
	lane  *Lane        // immutable
	owner memory.Owner // immutable; owns the backlog: the conn
	fd    int          // immutable; closed when nobody can write any more

	origin    int            // of the request that is answered; see cors.Policy
	requestID string         // of that request; empty: none
	entry     *observe.Entry // of that request; nil: it is not logged

	format   frame.Format // of the answer's frames
	bare     bool         // answers have no heads and no chunks, only frames
	deflates bool         // bare frames may be deflated, as messages of a WebSocket
	gzip     bool         // a whole answer may be in gzip
	chunked  bool         // the head of an answer of unknown length was written
	failed   bool         // the client gets no more bytes
	backlog  *backlog     // nil: no bytes wait
}

var errGone = errors.New("the client has left")

// Whole implements transport.Sink.
func (o *output) Whole(lead []byte, frames []*frame.Frame) (int, error) {
	// Fast path: one frame. All clients that get it within one second share a copy with its
	// head. Bytes of that copy that wait count as the client's own, because the next second
	// has another copy. So the copy is not for large frames.
	if len(frames) == 1 && len(lead) == 0 && o.requestID == "" {
		if f := frames[0]; len(f.Bytes(o.format)) < sharedBytes {
			n, head := len(f.Bytes(o.format)), o.head().frames[o.format]
			if o.gzip {
				if block, pays := f.Deflated(o.format, o.lane.cfg.Polls.Config().CompressionMinBytes); pays {
					o.lane.cfg.Metrics.Compressed(n, frame.MemberSize(block))
					head = o.head().gzipped[o.format]
				}
			}
			return n, o.write(part{bytes: f.Whole(head)})
		}
	}
	n := o.size(frames)
	s := scratches.Get().(*scratch)
	defer s.free()
	if o.gzip {
		if m := frame.TakeGzipMember(o.format, o.lane.cfg.Polls.Config().CompressionMinBytes, lead, frames); m != nil {
			defer m.Release()
			return n, o.writeMember(s, m)
		}
	}
	s.bytes = append(o.identified(o.head().frames[o.format].Append(s.bytes, len(lead)+n)), lead...)
	return n, o.writeFrames(s, frames, "")
}

// sharedBytes is the size of the smallest part that is written by itself where smaller parts
// are copied together.
const sharedBytes = 16 << 10

// size returns the size of frames: of those that may be deflated, their plain size.
func (o *output) size(frames []*frame.Frame) (bytes int) {
	format := o.format
	if o.deflates {
		format = format.OffSocket()
	}
	for _, f := range frames {
		bytes += len(f.Bytes(format))
	}
	return bytes
}

// head returns the heads of answers to the request in this second.
func (o *output) head() *head { return &o.lane.heads.Load().of[o.origin] }

// identified returns an answer, which begins with its head, with the id of its request. The
// field stands where net/http writes it. Heads without an id are shared; see heads.
func (o *output) identified(answer []byte) []byte {
	if o.requestID == "" {
		return answer
	}
	at := bytes.Index(answer, beforeDate) + len(lineEnd)
	return slices.Insert(answer, at, []byte("X-Request-Id: "+o.requestID+"\r\n")...)
}

var beforeDate = []byte("\r\nDate: ")

// Send implements transport.Sink. A part is one chunk, unless the connection is bare.
func (o *output) Send(lead []byte, frames []*frame.Frame) (int, error) {
	n := o.size(frames)
	// Fast path: one frame, in bytes that all subscribers share.
	if len(frames) == 1 && len(lead) == 0 && (o.chunked || o.bare && !o.deflates) {
		in := plain
		if o.chunked {
			in = chunk
		}
		return n, o.write(o.part(frames[0], in))
	}
	s := scratches.Get().(*scratch)
	defer s.free()
	if o.bare {
		s.bytes = append(s.bytes, lead...)
		return n, o.writeFrames(s, frames, "")
	}
	if !o.chunked {
		o.chunked = true
		s.bytes = o.identified(append(s.bytes, o.head().streams[o.format]...))
	}
	s.bytes = append(strconv.AppendInt(s.bytes, int64(len(lead)+n), 16), "\r\n"...)
	s.bytes = append(s.bytes, lead...)
	return n, o.writeFrames(s, frames, "\r\n")
}

// writeFrames writes a scratch, then frames, then end.
func (o *output) writeFrames(s *scratch, frames []*frame.Frame, end string) error {
	for _, f := range frames {
		var p part
		if o.deflates {
			p = part{o.lane.cfg.Polls.SocketMessage(f, o.format), f, asIs}
		} else {
			p = o.part(f, plain)
		}
		if err := o.add(s, p); err != nil {
			return err
		}
	}
	s.bytes = append(s.bytes, end...)
	return o.writeScratch(s)
}

// add adds a part to a scratch, and writes the scratch before if it is full. It writes the
// part by itself if that is large or the client does not read.
func (o *output) add(s *scratch, p part) error {
	if len(s.bytes)+len(p.bytes) >= atOnceBytes || o.Blocked() {
		if err := o.writeScratch(s); err != nil {
			return err
		}
		clear(s.parts)
		*s = scratch{s.bytes[:0], s.parts[:0], s.starts[:0]}
		if len(p.bytes) >= sharedBytes || o.Blocked() {
			return o.write(p)
		}
	}
	s.append(p)
	return nil
}

// writeMember writes m as a whole answer.
func (o *output) writeMember(s *scratch, m *frame.GzipMember) error {
	o.lane.cfg.Metrics.Compressed(m.Raw(), m.Size())
	s.bytes = o.identified(o.head().gzipped[o.format].Append(s.bytes, m.Size()))
	for _, p := range m.Parts() {
		if p.Frame == nil { // these bytes are reused before the client reads them
			s.bytes = append(s.bytes, p.Bytes...)
		} else if err := o.add(s, part{p.Bytes, p.Frame, asIs}); err != nil {
			return err
		}
	}
	return o.writeScratch(s)
}

var lastChunk = []byte("0\r\n\r\n") // of an answer of unknown length

// write writes a part. The client's own bytes must not change any more.
func (o *output) write(p part) error {
	return o.writeScratch(&scratch{p.bytes, []part{p}, []int{0}})
}

// writeScratch writes a scratch. The bytes that the client does not take become backlog: of
// the parts references, and of what is between them copies.
func (o *output) writeScratch(s *scratch) error {
	b, from := s.bytes, 0
	if !o.Blocked() {
		from = o.put(b)
	}
	if o.failed {
		return errGone
	}
	o.entry.Wrote(len(b))
	for i := 0; i < len(s.parts) && from < len(b); i++ {
		p, begin := s.parts[i], s.starts[i]
		end := begin + len(p.bytes)
		if end <= from {
			continue
		}
		if begin > from {
			o.keep(part{bytes: bytes.Clone(b[from:begin])}, 0)
			from = begin
		}
		o.keep(p, from-begin)
		from = end
	}
	if from < len(b) {
		o.keep(part{bytes: bytes.Clone(b[from:])}, 0)
	}
	return nil
}

// atOnceBytes is about how many bytes one write has.
const atOnceBytes = 64 << 10

// put writes b until the client takes no more now, and returns how many bytes it took.
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

// Deflates implements transport.Parking.
func (o *output) Deflates(whole bool) bool {
	if whole {
		return o.gzip
	}
	return o.deflates
}

// Blocked implements transport.Parking.
func (o *output) Blocked() bool { return o.backlog != nil }

// flush writes the backlog until the client takes no more now.
func (o *output) flush() {
	for o.Blocked() {
		s := scratches.Get().(*scratch)
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

// A scratch is memory in which an answer is put together.
type scratch struct {
	bytes  []byte
	parts  []part // of frames that were copied to bytes
	starts []int  // where each part begins in bytes
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// append copies a frame's part.
func (s *scratch) append(p part) {
	s.parts, s.starts = append(s.parts, p), append(s.starts, len(s.bytes))
	s.bytes = append(s.bytes, p.bytes...)
}

// maxScratch is the largest scratch that is kept for reuse.
const maxScratch = 2 * atOnceBytes

// free keeps the scratch for reuse. Nothing may refer to its memory.
func (s *scratch) free() {
	clear(s.parts)
	*s = scratch{s.bytes[:0], s.parts[:0], s.starts[:0]}
	if cap(s.bytes) <= maxScratch {
		scratches.Put(s)
	}
}
