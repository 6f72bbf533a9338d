package broker

import (
	"sort"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A history is the messages that a topic retains, oldest first, in a ring that
// grows and shrinks with them. It belongs to its topic, whose lock guards it.
type history struct {
	ring  []*wire.Frame // length is a power of two, or zero
	start int           // index of the oldest in ring
	count int
	bytes int // sum of the frames' sizes

	lost   uint64         // highest offset no longer held
	reason wire.GapReason // why the last of those left
}

func (h *history) len() int { return h.count }

// at returns the i-th oldest message.
func (h *history) at(i int) *wire.Frame { return h.ring[(h.start+i)&(len(h.ring)-1)] }

func (h *history) front() *wire.Frame { return h.at(0) }

// push appends the newest message.
func (h *history) push(f *wire.Frame) {
	if h.count == len(h.ring) {
		h.resize(max(4, 2*len(h.ring)))
	}
	h.ring[(h.start+h.count)&(len(h.ring)-1)] = f
	h.count++
	h.bytes += f.Size()
}

// pop lets go of the oldest message and remembers why.
func (h *history) pop(reason wire.GapReason) {
	f := h.front()
	h.ring[h.start] = nil
	h.start = (h.start + 1) & (len(h.ring) - 1)
	h.count--
	h.bytes -= f.Size()
	h.lost, h.reason = f.Position().Offset, reason
	switch {
	case h.count == 0:
		h.ring, h.start = nil, 0
	case len(h.ring) > 16 && h.count <= len(h.ring)/4:
		h.resize(len(h.ring) / 2)
	}
}

func (h *history) resize(n int) {
	ring := make([]*wire.Frame, n)
	for i := range h.count {
		ring[i] = h.at(i)
	}
	h.ring, h.start = ring, 0
}

// after returns the index of the oldest message above offset.
func (h *history) after(offset uint64) int {
	return sort.Search(h.count, func(i int) bool { return h.at(i).Position().Offset > offset })
}

// appendAfter appends every message above offset.
func (h *history) appendAfter(dst []*wire.Frame, offset uint64) []*wire.Frame {
	for i := h.after(offset); i < h.count; i++ {
		dst = append(dst, h.at(i))
	}
	return dst
}

// get returns the message at exactly that offset, or nil.
func (h *history) get(offset uint64) *wire.Frame {
	i := h.after(offset - 1)
	if i == h.count || h.at(i).Position().Offset != offset {
		return nil
	}
	return h.at(i)
}

// A Limit bounds how much one read takes: at most Frames frames and about Bytes
// bytes, but always one frame.
type Limit struct {
	Frames int
	Bytes  int
}

// Take uses up what f needs and reports whether it fits.
func (l *Limit) Take(f *wire.Frame, first bool) bool {
	if l.Frames <= 0 || (!first && f.Size() > l.Bytes) {
		return false
	}
	l.Frames--
	l.Bytes -= f.Size()
	return true
}

// read appends what follows position from, in order: a gap for each range that
// is no longer there (with the reason given, if any, for what the history let
// go of), then the messages. It returns the offset up to which it read.
func (h *history) read(dst []*wire.Frame, from wire.Position, slow wire.GapReason, limit Limit, now time.Time) ([]*wire.Frame, uint64) {
	r := reader{frames: dst, first: len(dst), at: from, limit: limit}
	if from.Offset < h.lost {
		reason := h.reason
		if slow != "" {
			reason = slow
		}
		r.skip(reason, h.lost)
	}
	for i := h.after(r.at.Offset); i < h.count; i++ {
		f := h.at(i)
		if f.Expired(now) {
			r.skip(wire.GapExpired, f.Position().Offset)
		} else if !r.add(f) {
			break
		}
	}
	return r.finish()
}

// A reader builds what one read returns; consecutive losses become one gap.
type reader struct {
	frames []*wire.Frame
	first  int
	at     wire.Position
	limit  Limit
	gap    *wire.Gap // not yet appended
}

func (r *reader) skip(reason wire.GapReason, offset uint64) {
	if r.gap == nil {
		r.gap = &wire.Gap{Topic: r.at.Topic, Reason: reason, After: r.at}
	}
	r.at.Offset = offset
	r.gap.Position = r.at
}

func (r *reader) add(f *wire.Frame) bool {
	if !r.flush() || !r.limit.Take(f, len(r.frames) == r.first) {
		return false
	}
	r.frames = append(r.frames, f)
	r.at.Offset = f.Position().Offset
	return true
}

// flush appends the gap that is pending; if it does not fit, the read ends before
// it.
func (r *reader) flush() bool {
	if r.gap == nil {
		return true
	}
	f := wire.NewGapFrame(*r.gap)
	if !r.limit.Take(f, len(r.frames) == r.first) {
		r.at.Offset = r.gap.After.Offset
		r.limit.Frames = 0
		return false
	}
	r.frames = append(r.frames, f)
	r.gap = nil
	return true
}

func (r *reader) finish() ([]*wire.Frame, uint64) {
	r.flush()
	return r.frames, r.at.Offset
}
