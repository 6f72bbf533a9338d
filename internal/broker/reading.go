package broker

import (
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Limit bounds how much one read takes: at most Frames frames and about Bytes
// bytes, but always one frame.
type Limit struct {
	Frames int
	Bytes  int
}

// Take uses up what f needs and reports whether it fits.
func (l *Limit) Take(f *frame.Frame, first bool) bool {
	if l.Frames <= 0 || (!first && f.Size() > l.Bytes) {
		return false
	}
	l.Frames--
	l.Bytes -= f.Size()
	return true
}

// A Reading says what a subscriber is to be given of a topic's history.
type Reading struct {
	Had   wire.Position // of the last message or gap that it was sent, where a gap begins
	After uint64        // offset after which to read; beyond Had if its own messages were passed over
	UpTo  uint64        // offset up to which to read; 0 is the newest

	// Lost is the reason for what the history has let go of, but for a deletion;
	// empty is the history's own.
	Lost wire.GapReason

	// Slow says that the subscriber fell behind, so that the topic's policy applies.
	Slow bool

	// Newest, if not 0, leaves out all but so many. Conflate leaves out what a newer
	// message with the same key follows.
	Newest   int
	Conflate bool

	// NoEcho leaves out, without a gap, messages of the client of that name.
	NoEcho string

	Limit Limit

	// restarted says that Had means nothing to the topic: the reading begins with a gap,
	// restarted, and reads all that is held.
	restarted bool
}

// A stretch is the part of a history that one reading is about.
type stretch struct {
	from, to int            // indices in the history, the second exclusive
	newest   map[string]int // index of the newest message of each key; nil: all are read
}

// A reader builds what one reading returns; consecutive losses become one gap.
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

// read appends what how asks for, in order: a gap for each range that is lost or
// left out, then the messages. It returns the position up to which it read. at is a
// position of the history's topic.
func (h *history) read(dst []*frame.Frame, at wire.Position, how Reading, now time.Time) ([]*frame.Frame, wire.Position) {
	r := reader{history: h, how: how, now: now, frames: dst, first: len(dst), had: how.Had, at: at}
	if how.restarted {
		r.skip(wire.GapRestarted, h.lost)
		r.how.UpTo = 0
		r.flush() // apart from what was lost since
	} else {
		r.at.Offset = how.After
	}
	if r.at.Offset < h.lost {
		r.skip(r.lost(), h.lost)
	}
	r.readAll(r.stretch())
	r.flush()
	return r.frames, r.at
}

// lost is why messages are gone from the history.
func (r *reader) lost() wire.GapReason {
	if r.how.Lost != "" && r.history.reason != wire.GapDeleted {
		return r.how.Lost
	}
	return r.history.reason
}

func (r *reader) stretch() stretch {
	s := stretch{from: r.history.after(r.at.Offset), to: r.history.count}
	if r.how.UpTo > 0 {
		s.to = max(s.from, r.history.after(r.how.UpTo))
	}
	if n := r.how.Newest; n > 0 && s.to-s.from > n {
		s.from = s.to - n
		r.skip(wire.GapSlow, r.history.at(s.from-1).Position().Offset)
	}
	if r.how.Conflate {
		s.newest = r.history.newestByKey(s.from, s.to)
	}
	return s
}

// withPolicy returns how with the policy of a rule, if it applies.
func (how Reading) withPolicy(rule *Rule) Reading {
	switch {
	case !how.Slow:
	case rule.Slow == DropOldest:
		how.Newest = rule.Keep
	case rule.Slow == Conflate:
		how.Conflate = true
	}
	return how
}

// newestByKey returns the index of the newest message of each key between two
// indices. Messages without a key share one.
func (h *history) newestByKey(from, to int) map[string]int {
	newest := make(map[string]int)
	for i := from; i < to; i++ {
		newest[h.at(i).Message().Key] = i
	}
	return newest
}

// readAll reads a stretch as far as the limit goes.
func (r *reader) readAll(s stretch) {
	for i := s.from; i < s.to; i++ {
		f := r.history.at(i)
		m := f.Message()
		switch {
		case f.Expired(r.now):
			r.skip(wire.GapExpired, m.Position.Offset)
		case s.newest != nil && s.newest[m.Key] != i:
			r.skip(wire.GapConflated, m.Position.Offset)
		case r.how.NoEcho != "" && m.Client == r.how.NoEcho:
			r.at.Offset = m.Position.Offset
		case !r.add(f):
			return
		}
	}
}

func (r *reader) skip(reason wire.GapReason, offset uint64) {
	if r.gap == nil {
		r.gap = &wire.Gap{Topic: r.at.Topic, Reason: reason, After: r.had}
	}
	r.at.Offset = offset
	r.gap.Position = r.at
}

func (r *reader) add(f *frame.Frame) bool {
	if !r.flush() || !r.how.Limit.Take(f, len(r.frames) == r.first) {
		return false
	}
	r.append(f)
	return true
}

// flush appends the gap that is pending; if it does not fit, the reading ends
// before it.
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
	at := r.at // its own messages may have been passed over behind the gap
	r.append(f)
	r.at.Offset = max(at.Offset, r.at.Offset)
	return true
}

func (r *reader) append(f *frame.Frame) {
	r.frames = append(r.frames, f)
	r.had = f.Position()
	r.at = r.had
}

// ReadTopic returns what the start's topic holds from there on, within limit, as
// frames; ok is false if there is no such topic. A start at now reads nothing.
func (b *Broker) ReadTopic(start wire.Start, limit Limit, now time.Time) (frames []*frame.Frame, ok bool) {
	t := b.find(start.Topic)
	if t == nil {
		return nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	j, restarted := t.settleLocked(start)
	how := Reading{Had: j.Position, After: j.Cursor, Limit: limit, restarted: restarted}
	frames, _ = t.history.read(frames, t.positionLocked(0), how, now)
	return frames, true
}

// Topic returns the state of a topic; ok is false if there is none of that name.
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
		Oldest:        t.positionLocked(t.history.lost),
		Messages:      t.history.len(),
		Bytes:         t.history.bytes,
		Subscriptions: len(t.subs),
	}
	if n := t.history.len(); n > 0 {
		state.Time = t.history.at(n - 1).Message().Time
	}
	return state
}

// Topics lists at most limit topics that show lets through and whose names come
// after the given one, in byte order.
func (b *Broker) Topics(after string, limit int, show func(topic string) bool) wire.TopicList {
	found := b.topicsAfter(after, limit+1, show)
	list := wire.TopicList{Topics: []wire.TopicState{}}
	if len(found) > limit {
		found = found[:limit]
		list.Next = found[limit-1].name
	}
	for _, t := range found {
		list.Topics = append(list.Topics, t.state())
	}
	return list
}

// topicsAfter returns the first n topics after the given name, in order. It looks at a
// page of names at a time: others make topics meanwhile.
func (b *Broker) topicsAfter(after string, n int, show func(topic string) bool) (found []*topic) {
	for {
		names := b.names.after(after, n)
		for _, name := range names {
			if t := b.find(name); t != nil && show(name) {
				found = append(found, t)
			}
			if len(found) == n {
				return found
			}
		}
		if len(names) < n {
			return found
		}
		after = names[n-1]
	}
}
