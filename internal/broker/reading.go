package broker

import (
	"cmp"
	"math"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Reading selects what a subscriber gets of a topic's history.
type Reading struct {
	Had   wire.Position // of the last message or gap that was sent; gaps begin there
	After uint64        // offset after which to read; above Had if echoes were left out
	UpTo  uint64        // offset up to which to read; 0: the newest

	// Lost replaces the history's reason for lost messages, except deleted.
	Lost wire.GapReason

	// Slow says that the subscriber fell behind, so that the topic's policy applies.
	Slow bool

	// Newest, unless 0, is how many of the newest messages to keep. Conflate leaves out
	// messages that are followed by one with the same key.
	Newest   int
	Conflate bool

	// NoEcho leaves out, without a gap, messages of the client of that name.
	NoEcho string

	Limit frame.Limit

	// bounded says that no gap goes beyond UpTo.
	bounded bool

	// restarted says that the topic does not know Had. The reading begins with a gap,
	// restarted, and with the oldest message.
	restarted bool

	losses []loss // of the partition
}

// A reader collects the frames of one reading. Consecutive losses become one gap.
type reader struct {
	history *history
	how     Reading
	now     time.Time
	frames  []*frame.Frame
	first   int           // where this reading's frames begin
	had     wire.Position // of the last frame
	at      wire.Position // up to where it has read
	gap     *wire.Gap     // not yet appended
}

// read appends what how selects, in order: a gap for each range that is lost or left out,
// and the messages. It returns the position up to which it read. at is any position of
// the topic.
func (h *history) read(dst []*frame.Frame, at wire.Position, how Reading, now time.Time) ([]*frame.Frame, wire.Position) {
	r := reader{history: h, how: how, now: now, frames: dst, first: len(dst), had: how.Had, at: at}
	if how.restarted {
		r.skip(wire.GapRestarted, h.lost)
		r.how.UpTo = 0
		how.UpTo = 0
		r.flush() // losses of the new epoch get a gap of their own
	} else {
		r.at.Offset = how.After
	}
	lost := h.lost
	if how.bounded && how.UpTo > 0 {
		lost = min(lost, how.UpTo)
	}
	if r.at.Offset < lost {
		r.skipLosses(lost)
		reason := h.reason
		if how.Lost != "" && reason != wire.GapDeleted {
			reason = how.Lost
		}
		r.skip(reason, lost)
	}
	from, to := h.after(r.at.Offset), h.count
	if how.UpTo > 0 {
		to = max(from, h.after(how.UpTo))
	}
	if n := how.Newest; n > 0 && to-from > n {
		from = to - n
		r.skip(wire.GapSlow, h.at(from-1).Position().Offset)
	}
	r.readAll(from, to)
	r.flush()
	return r.frames, r.at
}

// readAll reads from one index of the history to another, as far as the limit goes.
func (r *reader) readAll(from, to int) {
	var newest map[string]int // index of the newest message of each key; those without a key share one
	if r.how.Conflate {
		newest = make(map[string]int)
		for i := from; i < to; i++ {
			newest[r.history.at(i).Message().Key] = i
		}
	}
	for i := from; i < to; i++ {
		f := r.history.at(i)
		m := f.Message()
		r.skipLosses(m.Position.Offset - 1)
		switch {
		case f.Expired(r.now):
			r.skip(wire.GapExpired, m.Position.Offset)
		case newest != nil && newest[m.Key] != i:
			r.skip(wire.GapConflated, m.Position.Offset)
		case r.how.NoEcho != "" && m.Client == r.how.NoEcho:
			r.at.Offset = m.Position.Offset
		case !r.flush() || !r.how.Limit.Take(f, len(r.frames) == r.first):
			return
		default:
			r.append(f)
		}
	}
	r.skipLosses(cmp.Or(r.how.UpTo, math.MaxUint64))
}

// skipLosses skips what the log has lost up to an offset, unless it was read before. Among
// several losses, whose offsets are not known, any message may come after a lost one.
func (r *reader) skipLosses(upTo uint64) {
	for _, l := range r.how.losses {
		if last := min(l.last, upTo); max(l.first, r.at.Offset+1) <= last {
			r.skip(wire.GapLost, last)
		}
	}
}

// skip adds to the pending gap. Its reason is that of the first part, unless the log has
// lost another.
func (r *reader) skip(reason wire.GapReason, offset uint64) {
	if r.gap == nil {
		r.gap = &wire.Gap{Topic: r.at.Topic, After: r.had}
	}
	if r.gap.Reason == "" || reason == wire.GapLost {
		r.gap.Reason = reason
	}
	r.at.Offset = offset
	r.gap.Position = r.at
}

// flush appends the pending gap. If it does not fit, the reading ends before it.
func (r *reader) flush() bool {
	if r.gap == nil {
		return true
	}
	f := frame.NewGap(*r.gap)
	r.gap = nil
	if !r.how.Limit.Take(f, len(r.frames) == r.first) {
		r.at = r.had
		r.how.Limit.Frames = 0
		return false
	}
	at := r.at // echoes may have been left out after the gap
	r.append(f)
	r.at.Offset = max(at.Offset, r.at.Offset)
	return true
}

func (r *reader) append(f *frame.Frame) {
	r.frames = append(r.frames, f)
	r.had = f.Position()
	r.at = r.had
}

// ReadTopic returns the messages and gaps of a topic from start, within limit, and the
// position from which it read; zero if the topic does not exist. A start at now reads
// nothing.
func (b *Broker) ReadTopic(start wire.Start, limit frame.Limit, now time.Time) (frames []*frame.Frame, from wire.Position) {
	t := b.find(start.Topic)
	if t == nil {
		return nil, wire.Position{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	j, restarted := t.resolveLocked(start)
	how := Reading{Had: j.Position, After: j.Cursor, Limit: limit, restarted: restarted, losses: t.partition.lost()}
	frames, _ = t.history.read(frames, t.positionLocked(0), how, now)
	return frames, j.Position
}

// A Page is a part of a topic's history that is read backwards: the messages before a
// position. The first ones may be evicted before they are read.
type Page struct {
	From wire.Position // after which it begins
	UpTo uint64        // offset up to which it goes; that of From if the page is empty

	unknown bool // the topic did not know the position before which the page ends
}

// PageBefore returns the page of the newest n messages before a position, or of all if
// before is zero. If the topic does not know the position, reading the page gives only a
// gap, restarted. ok is false if the topic does not exist.
func (b *Broker) PageBefore(topic string, before wire.Position, n int, now time.Time) (p Page, ok bool) {
	t := b.find(topic)
	if t == nil {
		return Page{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	upTo := t.head
	switch {
	case before == (wire.Position{}):
	case !t.knowsLocked(before):
		return Page{From: before, UpTo: math.MaxUint64, unknown: true}, true
	case before.Offset <= upTo:
		upTo = max(before.Offset, 1) - 1
	}
	return Page{From: t.positionLocked(t.newestFewLocked(n, upTo, now)), UpTo: upTo}, true
}

// IsEmpty reports whether the page has no messages.
func (p Page) IsEmpty() bool { return p.From.Offset == p.UpTo }

// ReadPage returns the messages and gaps of the page after a position, within limit. If the topic
// does not know the position, or did not know that of PageBefore, it returns only a gap, restarted.
// No other gap goes beyond the page, even if messages after it were lost meanwhile.
func (b *Broker) ReadPage(p Page, after wire.Position, limit frame.Limit, now time.Time) []*frame.Frame {
	t := b.find(after.Topic)
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	j, restarted := t.resolveLocked(wire.StartAfter(after))
	if restarted = restarted || p.unknown; restarted {
		limit.Frames = 1 // what follows the gap is not of the page
	}
	how := Reading{Had: j.Position, After: j.Cursor, UpTo: p.UpTo, bounded: true, Limit: limit, restarted: restarted, losses: t.partition.lost()}
	frames, _ := t.history.read(nil, t.positionLocked(0), how, now)
	return frames
}

// Topic returns the state of a topic. ok is false if it does not exist.
func (b *Broker) Topic(name string) (state wire.TopicState, ok bool) {
	t := b.find(name)
	if t == nil {
		return wire.TopicState{}, false
	}
	return t.state(), true
}

func (t *topic) state() wire.TopicState {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := wire.TopicState{
		Topic:         t.name,
		Position:      t.positionLocked(t.head),
		Oldest:        t.positionLocked(t.oldestLocked()),
		Messages:      t.history.count,
		Bytes:         t.history.bytes,
		Subscriptions: len(t.subs),
	}
	if n := t.history.count; n > 0 {
		state.Time = t.history.at(n - 1).Message().Time
	}
	return state
}
