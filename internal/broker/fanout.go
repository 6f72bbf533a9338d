package broker

import (
	"runtime"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// maybeFanOutLocked sees to it that m, just appended, is offered: by the fan-out
// that is running, by a new one, or, if there are few subscribers, by its caller
// once it has let go of the lock. With no subscriber there is nothing to do.
func (t *topic) maybeFanOutLocked(m *wire.Message) (few bool) {
	if len(t.subs) == 0 && !t.fanning {
		t.mark = t.head
		return false
	}
	t.unsent++
	t.unsentBytes += m.Size()
	if t.fanning {
		return false
	}
	if len(t.subs) <= fewSubscribers {
		t.fanning = true
		return true
	}
	t.maybeStartLocked()
	return false
}

// maybeStartLocked starts a fan-out, unless one is running.
func (t *topic) maybeStartLocked() {
	if !t.fanning {
		t.fanning = true
		t.broker.fanOuts.Go(t.fanOut)
	}
}

// fewSubscribers is how many a publisher offers to himself: for them, waking
// another goroutine, and often another core, costs more than the offers do. In the
// collaboration of two, it was a fifth of the daemon's CPU per message.
const fewSubscribers = 8

// A batch is what one round of a fan-out needs.
type batch struct {
	frames []*frame.Frame
	subs   []*Subscription
	missed bool // messages before these frames were lost
}

// offer tells the subscribers what the batch holds.
func (b *batch) offer(to func([]*Subscription, []*frame.Frame)) {
	if b.missed {
		for _, s := range b.subs {
			s.to.Emptied()
		}
	}
	if len(b.frames) > 0 {
		to(b.subs, b.frames)
	}
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// fanOutHere offers what there is, once. If more came meanwhile, a fan-out goes on
// with it: a publisher must not do others' work for ever.
func (t *topic) fanOutHere() {
	b := batches.Get().(*batch)
	if t.nextBatch(b) {
		b.offer(offerTurn)
		t.advance(b.frames)
		if t.maybeRest() {
			t.broker.fanOuts.Go(t.fanOut)
		}
	}
	clear(b.frames)
	clear(b.subs)
	if cap(b.frames) <= lagMessages {
		batches.Put(b)
	}
}

// maybeRest ends the fan-out unless something is left to offer.
func (t *topic) maybeRest() (left bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fanning = t.unsent > 0 || t.missed
	return t.fanning
}

// fanOut offers what is above the mark to every subscriber, many messages at a
// time when it lags, until nothing is left. It holds no lock while it offers:
// whoever joins meanwhile begins above what is being offered, and whoever left
// ignores it.
func (t *topic) fanOut() {
	var b batch
	for t.nextBatch(&b) {
		b.offer(offerAll)
		t.advance(b.frames)
	}
}

// A part is how many subscribers it takes to make another core worth its waking,
// and a turn how many are offered to before others may have the core: writing to
// ten thousand connections takes a tenth of a second, and another topic's burst,
// or the answer to a publisher, should not wait for that.
const (
	part = 512
	turn = 64
)

// offerAll offers frames to every subscriber, on half of the cores if there are
// many: the others read what those who have them ask for next. On two cores, a
// second fan-out cost 15 % more CPU per delivery and shortened no burst. It returns
// when all have them, which keeps each one's order.
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
	for ; len(subs) > turn; subs = subs[turn:] {
		offerTurn(subs[:turn], frames)
		runtime.Gosched()
	}
	offerTurn(subs, frames)
}

func offerTurn(subs []*Subscription, frames []*frame.Frame) {
	now := time.Now()
	for _, s := range subs {
		s.to.Offer(frames, now)
	}
}

// nextBatch copies what is unsent and who is to get it, or ends the fan-out.
func (t *topic) nextBatch(b *batch) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b.frames = t.history.appendAfter(b.frames[:0], t.mark)
	b.missed, t.missed = t.missed, false
	t.fanning = len(b.frames) > 0 || b.missed
	b.subs = b.subs[:0]
	if t.fanning {
		b.subs = append(b.subs, t.subs...)
	}
	return t.fanning
}

// advance moves the mark over what was offered, which may then be evicted.
func (t *topic) advance(frames []*frame.Frame) {
	if len(frames) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range frames {
		if at := f.Position(); at.Offset > t.mark && at.Epoch == t.epoch { // else it was lost meanwhile
			t.mark = at.Offset
			t.unsent--
			t.unsentBytes -= f.Size()
		}
	}
	t.trimLocked(time.Now())
}
