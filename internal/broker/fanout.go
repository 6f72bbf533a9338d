package broker

import (
	"runtime"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
)

// maybeStartLocked starts a fan-out, unless one is running.
func (t *topic) maybeStartLocked() {
	if !t.fanning {
		t.fanning = true
		t.broker.fanOuts.Go(t.fanOut)
	}
}

// fewSubscribers is the most subscribers to which a publisher itself offers a message.
// For so few, waking another goroutine costs more than the offers. With two subscribers
// it was a fifth of the daemon's CPU per message.
const fewSubscribers = 8

// A batch has the messages and subscribers of one round of a fan-out.
type batch struct {
	frames []*frame.Frame
	subs   []*Subscription
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// fanOut offers the messages above the mark to every subscriber, until none is left. When
// it lags, it offers many at a time.
func (t *topic) fanOut() {
	for t.offerNext(nil) {
	}
}

// offerNext offers the unsent messages, and then moves the mark over them, so that they may be
// evicted. It holds no lock while it offers. A subscriber that joins meanwhile begins above
// these messages, and one that has left ignores them. Unless something is left to offer, the
// fan-out ends.
//
// direct, unless nil, is the only message to offer: it is in no history, and the mark is above it.
func (t *topic) offerNext(direct *frame.Frame) (left bool) {
	b := batches.Get().(*batch)
	t.mu.Lock()
	missed := t.missed
	t.missed = false
	if direct != nil {
		b.frames = append(b.frames, direct)
	} else {
		for i := t.history.after(t.mark); i < t.history.count; i++ {
			b.frames = append(b.frames, t.history.at(i))
		}
	}
	b.subs = append(b.subs, t.subs...)
	t.mu.Unlock()
	if missed {
		for _, s := range b.subs {
			s.to.Missed()
		}
	}
	switch {
	case len(b.frames) == 0:
	case len(b.subs) < 2*part:
		offer(b.subs, b.frames)
	default:
		offerAll(b.subs, b.frames)
	}
	if direct != nil {
		direct.Release()
	}
	t.mu.Lock()
	for _, f := range b.frames {
		if at := f.Position(); at.Offset > t.mark && at.Epoch == t.epoch { // else it was lost meanwhile
			t.mark = at.Offset
			t.unsent--
			t.unsentBytes -= f.Size()
		}
	}
	var now time.Time
	if !t.keepsNoneLocked() { // reading the clock was a tenth of an ephemeral publish
		now = time.Now()
	}
	t.trimLocked(now)
	left = t.unsent > 0 || t.missed
	t.fanning = left
	t.mu.Unlock()
	clear(b.frames)
	clear(b.subs)
	if b.frames, b.subs = b.frames[:0], b.subs[:0]; cap(b.frames) <= lagMessages && cap(b.subs) <= 64*part {
		batches.Put(b)
	}
	return left
}

// A part is the number of subscribers for which waking another core pays. A turn is how
// many get their offers before other goroutines may run: writing to ten thousand
// connections takes a tenth of a second, and other topics should not wait for that.
const (
	part = 512
	turn = 64
)

// offerAll offers frames to every subscriber, on half of the cores if there are many
// subscribers: the other cores read the next requests. On two cores, a second fan-out
// cost 15 % more CPU per delivery and shortened no burst. offerAll returns after all
// offers, which keeps them in order.
func offerAll(subs []*Subscription, frames []*frame.Frame) {
	var others sync.WaitGroup
	for n := min(runtime.GOMAXPROCS(0)/2, len(subs)/part); n > 1; n-- {
		mine := subs[:len(subs)/n]
		subs = subs[len(mine):]
		others.Go(func() { offer(mine, frames) })
	}
	offer(subs, frames)
	others.Wait()
}

func offer(subs []*Subscription, frames []*frame.Frame) {
	now := time.Now()
	for i, s := range subs {
		if i > 0 && i%turn == 0 {
			runtime.Gosched()
			now = time.Now()
		}
		s.to.Offer(frames, now)
	}
}
