package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// What a topic returns instead of changing.
var (
	// errForgotten says that the topic was forgotten between finding and locking it:
	// look it up again.
	errForgotten = errors.New("topic forgotten")

	errKnown = errors.New("the entry was applied before")
)

// A topic orders messages, retains the recent ones, and knows its subscribers.
//
// Every subscriber gets messages in the order of their offsets, each at most once. A
// subscriber may miss messages; a gap announces those. A change holds mu only to append.
// One fan-out at a time reads the history from mark on, and offers it to a copy of subs
// without the lock. So no subscriber slows a publisher or another topic.
//
// What the fan-out has not offered yet is not evicted: a topic whose fan-out lags too
// far refuses messages. Only an entry that the log has already is taken even then.
type topic struct {
	name      string     // immutable
	broker    *Broker    // immutable
	partition *partition // immutable; nil: see Detached
	told      sync.Once  // announces the topic to followers, before its first message

	telling atomic.Bool               // the announcement is under way
	rule    atomic.Pointer[TopicRule] // another one after a reload

	mu          sync.Mutex // guards the fields below; taken after the shard's lock, never before
	epoch       string     // of the offsets; see restart
	born        uint64     // offset before the first message
	head        uint64     // offset of the newest message or deletion; born before the first
	history     history    // held messages, oldest first
	subs        []*Subscription
	pinned      int    // number of subs that keep the topic from being forgotten
	fanning     bool   // a fan-out is running, or about to
	mark        uint64 // offset up to which the fan-out has offered; head when not fanning
	unsent      int    // messages above mark
	unsentBytes int
	missed      bool      // messages were lost before the fan-out offered them: it says so next
	forgotten   bool      // the shard no longer holds the topic
	keepUntil   time.Time // the topic is not forgotten before
}

// newTopic returns a topic with a rule that was resolved for it on the way, or nil.
func newTopic(b *Broker, name string, rule *TopicRule) *topic {
	p := b.partitionOf(name)
	t := &topic{name: name, broker: b, partition: p}
	if rules := b.force.Load().rules; rule == nil || rule.in != rules {
		rule = rules.of(name)
	}
	t.rule.Store(rule)
	t.beginLocked(*p.epoch.Load(), p.floor.Load())
	return t
}

// beginLocked begins an empty topic, or begins it anew, above offset.
func (t *topic) beginLocked(epoch string, offset uint64) {
	t.epoch, t.born, t.head, t.mark = epoch, offset, offset, offset
	t.history.lost, t.history.reason = offset, wire.GapEvicted
}

// setRule puts another rule in force.
func (t *topic) setRule(rule *TopicRule, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rule.Store(rule)
	t.trimLocked(now)
}

// publish appends the entry's message. few says that the caller is to fan out. short
// says that the memory budget has no room for the message.
func (t *topic) publish(e *Entry, stored func(wire.Position), short bool, now time.Time) (few bool, err error) {
	m := e.Message
	at := m.Position
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.forgotten:
		return false, errForgotten
	case at.Offset > 0 && at.Offset <= t.newestLocked():
		return false, errKnown
	case at.Offset > 0:
		t.makeRoomLocked(short, m.Size())
	case t.lagsLocked():
		return false, t.lags()
	default:
		if t.head == t.born {
			t.partition.first.Lock()
			defer t.partition.first.Unlock()
		}
		at.Offset = t.nextLocked()
	}
	m.Position = t.positionLocked(at.Offset)
	t.head = max(t.head, at.Offset)
	t.history.push(frame.New(m, e.Accepted, e.TTL, t.broker.memory))
	t.broker.memory.Add(memory.History, int64(m.Size()))
	if stored != nil {
		stored(m.Position)
	}
	few = t.maybeFanOutLocked(m)
	t.trimLocked(now)
	return few, nil
}

// nextLocked returns the next offset. Above the floor there is no offset of a topic with
// this name that was forgotten.
func (t *topic) nextLocked() uint64 {
	if t.head == t.born {
		return max(t.head, t.partition.floor.Load()) + 1
	}
	return t.head + 1
}

// newestLocked returns the offset of the newest change that is known.
func (t *topic) newestLocked() uint64 {
	if n := t.history.len(); n > 0 {
		return t.history.at(n - 1).Position().Offset
	}
	return t.history.lost
}

// The fan-out of every topic may lag so far, however short its history is: a hundred
// publishers get that far before the scheduler has started the fan-out.
const (
	lagMessages = 1000
	lagBytes    = 8 << 20
)

// lagsLocked reports whether the fan-out lags too far: by half of what the history may
// hold, and by more than lagMessages or lagBytes.
func (t *topic) lagsLocked() bool {
	rule := t.rule.Load()
	return t.unsent >= max(rule.HistoryMessages/2, lagMessages) || t.unsentBytes >= max(rule.HistoryBytes/2, lagBytes)
}

func (t *topic) lags() *wire.Problem {
	t.broker.metrics.Limited.WithLabelValues("fan_out").Inc()
	return wire.NewProblem(wire.CodeOverloaded, "publish it again after the stated time",
		"the fan-out of topic %s lags too far", wire.Quote(t.name)).Retry(100 * time.Millisecond)
}

// makeRoomLocked evicts messages for one that cannot be refused, also messages that the
// fan-out has not offered: while the fan-out lags too far, and, if memory is short, as
// many as need the memory of the new one.
func (t *topic) makeRoomLocked(short bool, bytes int) {
	for t.history.len() > 0 && (t.lagsLocked() || short && bytes > 0) {
		bytes -= t.history.front().Size()
		t.evictLocked(wire.GapEvicted, evictedForMemory)
	}
}

func (t *topic) positionLocked(offset uint64) wire.Position {
	return wire.Position{Topic: t.name, Epoch: t.epoch, Offset: offset}
}

// trimLocked evicts the oldest messages until the history is within its bounds. The
// newest stays until its age is over, whatever its size.
func (t *topic) trimLocked(now time.Time) {
	for t.history.len() > 0 {
		f := t.history.front()
		reason := t.excessLocked(f, now)
		if reason == "" || f.Position().Offset > t.mark {
			return
		}
		t.evictLocked(reason, string(reason))
	}
}

// excessLocked returns why the oldest message has to go, or "".
func (t *topic) excessLocked(f *frame.Frame, now time.Time) wire.GapReason {
	most := t.rule.Load()
	switch {
	case now.Sub(f.Accepted()) >= most.HistoryAge || f.Expired(now):
		return wire.GapExpired
	case t.history.len() > 1 && (t.history.len() > most.HistoryMessages || t.history.bytes > most.HistoryBytes):
		return wire.GapEvicted
	}
	return ""
}

// evictLocked evicts the oldest message. why is its label in the metrics.
func (t *topic) evictLocked(reason wire.GapReason, why string) {
	f := t.history.front()
	if offset := f.Position().Offset; offset > t.mark {
		t.mark, t.missed = offset, true
		t.unsent--
		t.unsentBytes -= f.Size()
	}
	t.history.pop(reason)
	t.broker.memory.Add(memory.History, -int64(f.Size()))
	t.broker.metrics.Evicted.WithLabelValues(why).Inc()
	f.Release()
}

// loseLocked drops the messages up to an offset. The fan-out announces it: in one order
// with what it offers, so that nobody takes a newer message for the next.
func (t *topic) loseLocked(upTo uint64, reason wire.GapReason) {
	for t.history.len() > 0 && t.history.front().Position().Offset <= upTo {
		t.evictLocked(reason, string(reason))
	}
	t.history.lost, t.history.reason = upTo, reason
	t.head, t.mark = max(t.head, upTo), max(t.mark, upTo)
	t.missLocked()
}

// missLocked has the fan-out tell the subscribers that they miss something.
func (t *topic) missLocked() {
	if len(t.subs) > 0 {
		t.missed = true
		t.maybeStartLocked()
	}
}

// delete empties the history. The deletion has an offset, so every subscriber gets a
// gap, also one that had everything. It reports false if the topic was forgotten.
func (t *topic) delete(e *Entry, stored func(wire.Position)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := e.Message.Position
	switch {
	case t.forgotten:
		return false
	case at.Offset == 0:
		t.partition.first.Lock()
		defer t.partition.first.Unlock()
		at.Offset = t.nextLocked()
	case at.Epoch != t.epoch || at.Offset <= t.newestLocked():
		return true
	}
	e.Message.Position = t.positionLocked(at.Offset)
	t.loseLocked(at.Offset, wire.GapDeleted)
	if stored != nil {
		stored(e.Message.Position)
	}
	return true
}

// lose drops the messages that the log has lost. It reports false if the topic was
// forgotten.
func (t *topic) lose(e *Entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := e.Message.Position; at.Offset > t.history.lost && !t.forgotten {
		t.loseLocked(at.Offset, e.State.Reason)
	}
	return !t.forgotten
}

// resume makes a new topic what the entry says. It reports false if the topic was
// forgotten.
func (t *topic) resume(e *Entry, keepUntil time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.forgotten || t.head > t.born || len(t.subs) > 0 || e.Message.Position.Epoch != t.epoch {
		return !t.forgotten
	}
	t.beginLocked(t.epoch, e.State.Born)
	t.history.lost, t.history.reason = e.State.Lost, e.State.Reason
	t.head = max(t.head, e.Message.Position.Offset)
	t.mark, t.keepUntil = t.head, keepUntil
	return true
}

// restart begins another epoch. Nothing is left of the one before: subscribers get a
// gap, restarted.
func (t *topic) restart(epoch string, floor uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == epoch {
		return // it was created in the epoch
	}
	for t.history.len() > 0 {
		t.evictLocked(wire.GapRestarted, string(wire.GapRestarted))
	}
	t.beginLocked(epoch, floor)
	for _, s := range t.subs {
		s.restarted = true
	}
	t.missLocked()
}

// sweep trims by age, and reports whether the topic can be forgotten.
func (t *topic) sweep(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trimLocked(now)
	return t.isIdleLocked() && !now.Before(t.keepUntil)
}

// isIdleLocked reports whether the topic holds nothing, and nobody waits for anything of
// it.
func (t *topic) isIdleLocked() bool {
	if t.history.len() > 0 || t.pinned > 0 || t.fanning || t.telling.Load() {
		return false
	}
	for _, s := range t.subs {
		if s.restarted || s.settled.Load() <= t.head {
			return false
		}
	}
	return true
}

// forget ends the topic, and its subscriptions, and reports whether it does. Its offsets
// are not used again, so no position becomes ambiguous.
func (t *topic) forget(e *Entry, stored func(wire.Position)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := e.Message.Position; at.Offset > 0 {
		if at.Epoch != t.epoch || at.Offset < t.newestLocked() {
			return false // it was created again since
		}
		for t.history.len() > 0 { // it was empty when the log got the entry
			t.evictLocked(wire.GapExpired, string(wire.GapExpired))
		}
		t.head = max(t.head, at.Offset)
	}
	if !t.isIdleLocked() {
		return false
	}
	t.forgotten = true
	for _, s := range t.subs {
		s.index = gone
	}
	t.broker.countSubscriptions(-int64(len(t.subs)))
	e.Message.Position = t.positionLocked(t.head)
	if t.head == t.born {
		t.partition.raiseFloor(t.head)
		return true // no offset was used
	}
	t.partition.first.Lock()
	defer t.partition.first.Unlock()
	t.partition.forget(t.name, t.head)
	if stored != nil {
		stored(e.Message.Position)
	}
	return true
}
