package broker

import (
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// maybeFanOutLocked sees to it that m, just appended, is offered: by the fan-out
// that is running or by a new one. With no subscriber there is nothing to do.
func (t *topic) maybeFanOutLocked(m *wire.Message) {
	if len(t.subs) == 0 && !t.fanning {
		t.mark = t.head
		return
	}
	t.unsent++
	t.unsentBytes += m.Size()
	if !t.fanning {
		t.fanning = true
		t.broker.fanOuts.Go(t.fanOut)
	}
}

// fanOut offers what is above the mark to every subscriber, many messages at a
// time when it lags, until nothing is left. It holds no lock while it offers:
// whoever joins meanwhile begins above what is being offered, and whoever left
// ignores it.
func (t *topic) fanOut() {
	var frames []*wire.Frame
	var subs []*Subscription
	for {
		frames, subs = t.nextBatch(frames[:0], subs[:0])
		if len(frames) == 0 {
			return
		}
		for _, s := range subs {
			s.to.Offer(frames)
		}
		t.advance(frames)
	}
}

// nextBatch copies what is unsent and who is to get it, or ends the fan-out.
func (t *topic) nextBatch(frames []*wire.Frame, subs []*Subscription) ([]*wire.Frame, []*Subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	frames = t.history.appendAfter(frames, t.mark)
	if len(frames) == 0 {
		t.fanning = false
		return nil, nil
	}
	return frames, append(subs, t.subs...)
}

// advance moves the mark over what was offered, which may then be evicted.
func (t *topic) advance(frames []*wire.Frame) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mark = frames[len(frames)-1].Position().Offset
	t.unsent -= len(frames)
	for _, f := range frames {
		t.unsentBytes -= f.Size()
	}
	t.trimLocked(time.Now())
}
