package lane

import (
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// A backlog has the bytes that a client has not taken yet. It refers to frames, whose
// bytes all subscribers share. Copies for every client that does not read would have no
// bound. So an unread answer of a thousand frames takes 8 KB, whatever its length.
type backlog struct {
	runs []run

	// Bytes that wait. Only add changes these numbers.
	own    int // bytes for this client alone, and the references to frames
	shared int // bytes of frames
	unread memory.UnreadBytes
}

// refBytes is about how many bytes a reference to a frame takes.
const refBytes = 16

// A run is some bytes and the frames that follow them. The frames are pinned. A frame is
// encoded when the bytes before it are written.
type run struct {
	bytes  []byte
	frame  *frame.Frame // of bytes; nil: they are the client's own
	frames []*frame.Frame
	shape  shape // of frames
}

// A shape says how a frame was encoded.
type shape uint8

const (
	asIs  shape = iota // in a way that cannot be repeated
	plain              // in the answer's format
	chunk              // as a chunk in that format
)

// A part is some bytes of an answer: a frame in some shape, or the client's own bytes.
type part struct {
	bytes []byte
	frame *frame.Frame // nil: the client's own bytes
	shape shape
}

// part returns a frame in a shape.
func (o *output) part(f *frame.Frame, in shape) part {
	if in == chunk {
		return part{f.Chunk(o.format), f, chunk}
	}
	return part{f.Bytes(o.format), f, plain}
}

// keep appends a part to the backlog, without its first bytes. The client's own bytes must
// not change any more.
func (o *output) keep(p part, skip int) {
	if o.backlog == nil {
		o.backlog = new(backlog)
		o.backlog.unread.Init(o.lane.cfg.Polls.Memory(), o.owner)
	}
	w := o.backlog
	if p.frame == nil {
		w.add(len(p.bytes)-skip, 0)
	} else {
		p.frame.Pin()
		w.add(refBytes, len(p.bytes)-skip)
	}
	if last := len(w.runs) - 1; last >= 0 && skip == 0 && p.shape != asIs && w.runs[last].shape == p.shape {
		w.runs[last].frames = append(w.runs[last].frames, p.frame)
		return
	}
	w.runs = append(w.runs, run{bytes: p.bytes[skip:], frame: p.frame, shape: p.shape})
}

// add changes the numbers of bytes that wait.
func (w *backlog) add(own, shared int) {
	w.own += own
	w.shared += shared
	w.unread.Set(w.own, w.shared)
}

// next returns the first bytes of the backlog: a large part, or small parts put together
// in s. A slow client may have thousands of small parts.
func (o *output) next(s *scratch) []byte {
	if first := o.backlog.runs[0].bytes; len(first) >= sharedBytes {
		return first
	}
	for _, r := range o.backlog.runs {
		if len(s.bytes)+len(r.bytes) > atOnceBytes {
			return s.bytes
		}
		s.bytes = append(s.bytes, r.bytes...)
		for _, f := range r.frames {
			p := o.part(f, r.shape)
			if len(s.bytes)+len(p.bytes) > atOnceBytes {
				return s.bytes
			}
			s.bytes = append(s.bytes, p.bytes...)
		}
	}
	return s.bytes
}

// took removes the first n bytes of the backlog.
func (o *output) took(n int) {
	w := o.backlog
	for {
		r := &w.runs[0]
		now := min(n, len(r.bytes))
		n -= now
		if r.frame == nil {
			w.add(-now, 0)
		} else {
			w.add(0, -now)
		}
		if r.bytes = r.bytes[now:]; len(r.bytes) > 0 {
			return
		}
		if r.frame != nil {
			r.frame.Unpin()
			w.add(-refBytes, 0)
		}
		if len(r.frames) > 0 {
			r.frame = r.frames[0]
			r.bytes, r.frames = o.part(r.frame, r.shape).bytes, r.frames[1:]
			continue
		}
		w.runs[0] = run{}
		if w.runs = w.runs[1:]; len(w.runs) == 0 {
			o.backlog = nil
			return
		}
	}
}

// dropBacklog drops the backlog, because the client cannot read it any more.
func (o *output) dropBacklog() {
	w := o.backlog
	if w == nil {
		return
	}
	o.backlog = nil
	w.add(-w.own, -w.shared)
	for _, r := range w.runs {
		if r.frame != nil {
			r.frame.Unpin()
		}
		for _, f := range r.frames {
			f.Unpin()
		}
	}
}
