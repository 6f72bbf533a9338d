package broker

import (
	"sort"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A history has the messages that a topic retains, oldest first, in a ring that grows and
// shrinks with their number. The topic's lock guards it.
type history struct {
	ring  []*frame.Frame // length is a power of two, or zero
	start int            // index of the oldest in ring
	count int
	bytes int // sum of the frames' sizes

	withTTL int // number of messages that have a TTL

	lost   uint64         // highest offset no longer held
	reason wire.GapReason // why the last one was lost
}

// at returns the i-th oldest message.
func (h *history) at(i int) *frame.Frame { return h.ring[(h.start+i)&(len(h.ring)-1)] }

// push appends the newest message.
func (h *history) push(f *frame.Frame) {
	if h.count == len(h.ring) {
		h.resize(max(4, 2*len(h.ring)))
	}
	h.ring[(h.start+h.count)&(len(h.ring)-1)] = f
	h.count++
	h.bytes += f.Size()
	if f.TTL > 0 {
		h.withTTL++
	}
}

// pop removes the oldest message, for a reason.
func (h *history) pop(reason wire.GapReason) {
	f := h.at(0)
	h.ring[h.start] = nil
	h.start = (h.start + 1) & (len(h.ring) - 1)
	h.count--
	h.bytes -= f.Size()
	if f.TTL > 0 {
		h.withTTL--
	}
	h.lost, h.reason = f.Position().Offset, reason
	switch {
	case h.count == 0:
		h.ring, h.start = nil, 0
	case len(h.ring) > 16 && h.count <= len(h.ring)/4:
		h.resize(len(h.ring) / 2)
	}
}

func (h *history) resize(n int) {
	ring := make([]*frame.Frame, n)
	for i := range h.count {
		ring[i] = h.at(i)
	}
	h.ring, h.start = ring, 0
}

// after returns the index of the oldest message above offset.
func (h *history) after(offset uint64) int {
	return sort.Search(h.count, func(i int) bool { return h.at(i).Position().Offset > offset })
}

// get returns the message with that offset, or nil.
func (h *history) get(offset uint64) *frame.Frame {
	i := h.after(offset - 1)
	if i == h.count || h.at(i).Position().Offset != offset {
		return nil
	}
	return h.at(i)
}
