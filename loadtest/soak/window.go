package soak

import (
	"fmt"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A window is what a client of one session knows of the frames that it has not
// acked yet: when they come again, they must be the same. It is one goroutine's.
//
//	    acked            had
//	1 … K │ K+1 … K+n │  what is sent next
type window struct {
	acked  uint64 // the highest ack that was sent
	frames []frame
}

// A frame is what is remembered of one. Which message a position has, the ledger
// knows.
type frame struct {
	gap             wire.GapReason // empty for a message
	after, position wire.Position  // after is a gap's
}

func frameOf(c wire.Content) frame {
	if c.Gap != nil {
		return frame{gap: c.Gap.Reason, after: c.Gap.After, position: c.Gap.Position}
	}
	return frame{position: c.Message.Position}
}

// had returns how many frames the client has.
func (w *window) had() uint64 { return w.acked + uint64(len(w.frames)) }

// ack forgets the frames up to k, which is at least acked and at most had.
func (w *window) ack(k uint64) {
	w.frames = append(w.frames[:0:0], w.frames[k-w.acked:]...)
	w.acked = k
}

// An arrival is what the window says of a frame.
type arrival uint8

const (
	isNew arrival = iota
	again         // as it was
	gone          // a message that is a gap from now on
)

// take notes frame number n. An error says how it differs from what it was, or that
// it cannot have that number.
func (w *window) take(n uint64, f frame) (arrival, error) {
	if n <= w.acked || n > w.had()+1 {
		return again, fmt.Errorf("frame %d is %v, but %d frames were acknowledged and %d received", n, f, w.acked, w.had())
	}
	i := n - w.acked - 1
	if i == uint64(len(w.frames)) {
		w.frames = append(w.frames, f)
		return isNew, nil
	}
	was := w.frames[i]
	switch {
	case f == was:
		return again, nil
	case was.gap == "" && f.gap != "" && f.position == was.position && f.gap != wire.GapRestarted:
		w.frames[i] = f
		return gone, nil
	}
	return again, fmt.Errorf("frame %d was %v, but was repeated as %v", n, was, f)
}

// String is a frame as an error tells it.
func (f frame) String() string {
	if f.gap == "" {
		return f.position.String()
	}
	return fmt.Sprintf("the gap %s (%v, %v]", f.gap, f.after, f.position)
}
