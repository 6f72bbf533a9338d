package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Errors of topic.publish.
var (
	// errForgotten says that the topic was forgotten before it was locked: find it again.
	errForgotten = errors.New("topic forgotten")

	errKnown = errors.New("the entry was applied before")
)

// A topic orders messages, retains the recent ones, and knows its subscribers.
//
// Every subscriber gets messages in the order of their offsets, each at most once. If it
// misses messages, it gets a gap. A change holds mu only to append. One fan-out at a time
// offers the messages above mark to a copy of subs, without the lock. So no subscriber
// slows a publisher or another topic.
//
// Messages that were not offered yet are not evicted. Instead, a topic whose fan-out lags
// too far refuses new messages, unless the log has them already.
//
// An ephemeral topic evicts every message that was offered, unless a subscriber has a rate:
// such a subscriber always reads the history.
type topic struct {
	name      string     // immutable
	broker    *Broker    // immutable
	partition *partition // immutable; of Detached, nil if there are several
	announced sync.Once  // calls the followers before the topic's first message

	announcing atomic.Bool               // followers are being called
	rule       atomic.Pointer[TopicRule] // replaced by a reload

	mu          sync.Mutex // guards the fields below; taken after the shard's lock, never before
	epoch       string     // of the offsets; see restart
	born        uint64     // offset before the first message
	head        uint64     // offset of the newest message or deletion; born while the topic has used no offset
	history     history    // held messages, oldest first
	subs        []*Subscription
	pinned      int    // number of subs that keep the topic from being forgotten
	fanning     bool   // a fan-out runs, or starts soon
	mark        uint64 // offset up to which the fan-out has offered; head when not fanning
	unsent      int    // messages above mark
	unsentBytes int
	expected    int       // publishes that the log has or gets, and has not answered; see Broker.expect
	missed      bool      // messages were lost before they were offered; the fan-out calls Missed next
	gathering   bool      // followers join before the fan-out begins; fanning is set
	forgotten   bool      // the shard no longer holds the topic
	paced       int32     // number of subs with a rate
	keepUntil   time.Time // the topic is not forgotten before
}

// newTopic returns a topic. rule was resolved for it before, or is nil.
func newTopic(b *Broker, name string, rule *TopicRule) *topic {
	p := b.partitionOf(name)
	t := &topic{name: name, broker: b, partition: p}
	if f := b.settings.Load(); rule == nil || rule.in != f {
		rule = f.of(name)
	}
	t.rule.Store(rule)
	lost := p.forgotten.below(name)
	t.beginLocked(*p.epoch.Load(), max(lost, p.floor.Load()))
	t.history.lost = lost // other topics were forgotten at higher offsets, which is no loss here
	return t
}

// beginLocked begins an epoch of a topic without messages, above offset.
func (t *topic) beginLocked(epoch string, offset uint64) {
	t.epoch, t.born, t.head, t.mark = epoch, offset, offset, offset
	t.history.lost, t.history.reason = offset, wire.GapEvicted
}

// setRule replaces the rule. If the topic has subscribers, and becomes Watched or no longer
// is, that is noted as a change: what was told is true again.
func (t *topic) setRule(rule *TopicRule, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.rule.Swap(rule)
	if was.Watched != rule.Watched && len(t.subs) > 0 && !t.forgotten {
		t.broker.occupancy.add(t.name, rule.Watched, now)
	}
	t.trimLocked(now)
}

// announce calls the followers of a topic, once, before its first message. The publisher
// calls a few itself, so that they receive the message live. More are called in another
// goroutine, and read the message from history. An ephemeral topic has none, so its fan-out
// begins after these calls.
func (b *Broker) announce(t *topic) {
	t.announced.Do(func() {
		followers := b.Followers(t.name)
		t.announcing.Store(true) // the topic must not be forgotten meanwhile
		announce := func() {
			for _, f := range followers {
				f.Made(t.name)
			}
			t.announcing.Store(false)
		}
		switch {
		case len(followers) <= fewSubscribers:
			announce()
		case t.gather():
			b.fanOuts.Go(func() {
				announce()
				t.endGathering()
			})
		default:
			b.fanOuts.Go(announce)
		}
	})
}

// gather keeps the fan-out of an ephemeral topic from beginning before endGathering. It reports
// false for any other topic, and if a fan-out runs: after a deletion, which followers see as a gap.
func (t *topic) gather() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gathering = t.isEphemeral() && !t.fanning
	t.fanning = t.fanning || t.gathering
	return t.gathering
}

func (t *topic) endGathering() {
	t.mu.Lock()
	t.gathering = false
	t.mu.Unlock()
	t.fanOut()
}

func (t *topic) isEphemeral() bool { return t.partition == t.broker.ephemeral }

// publish appends the entry's message. If it returns few, the caller must fan out, with offerNext
// of direct. short says that the memory budget is full.
func (t *topic) publish(e *Entry, short bool, now time.Time) (few bool, direct *frame.Frame, err error) {
	m := e.Message
	at := m.Position
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.forgotten:
		return false, nil, errForgotten
	case at.Offset > 0 && at.Offset <= t.newestLocked():
		return false, nil, errKnown
	case at.Offset > 0:
		// The log has it, so it cannot be refused. It takes the place of messages, also of some that
		// were not offered yet: while the fan-out lags too far, and if memory is short.
		for need := m.Size(); t.history.count > 0 && (t.lagsLocked(0) || short && need > 0); {
			need -= t.history.at(0).Size()
			t.evictLocked(wire.GapEvicted, evictedForMemory)
		}
	case t.lagsLocked(0):
		return false, nil, t.lags()
	default:
		at.Offset = t.nextLocked()
	}
	m.Position = t.positionLocked(at.Offset)
	t.head = max(t.head, at.Offset)
	if t.isEphemeral() {
		t.keepUntil = now.Add(awayTime) // else each message may have to create it
		// Fast path: nobody gets it, or the publisher itself offers it.
		if t.paced == 0 && !t.fanning && len(t.subs) <= fewSubscribers {
			t.mark, t.history.lost, t.history.reason = t.head, t.head, wire.GapEvicted
			if t.fanning = len(t.subs) > 0; t.fanning {
				direct = frame.New(m, e.Accepted, e.TTL, t.broker.memory)
			}
			return t.fanning, direct, nil
		}
	}
	t.history.push(frame.New(m, e.Accepted, e.TTL, t.broker.memory))
	t.broker.memory.Add(t.kind(), int64(m.Size()))
	if len(t.subs) == 0 && !t.fanning {
		t.mark = t.head
	} else {
		t.unsent++
		t.unsentBytes += m.Size()
		if few = !t.fanning && len(t.subs) <= fewSubscribers; few {
			t.fanning = true
		} else {
			t.maybeStartLocked()
		}
	}
	t.trimLocked(now)
	return few, nil, nil
}

// nextLocked returns the next offset. The first one is above the floor, and so above the
// offsets of a forgotten topic with the same name.
func (t *topic) nextLocked() uint64 {
	if t.head == t.born {
		return max(t.head, t.partition.floor.Load()) + 1
	}
	return t.head + 1
}

// newestLocked returns the offset of the newest change of the topic.
func (t *topic) newestLocked() uint64 {
	if n := t.history.count; n > 0 {
		return t.history.at(n - 1).Position().Offset
	}
	return t.history.lost
}

// lastLocked returns the offset of the last frame for a subscriber: that of the newest
// change, or of a later loss of the log.
func (t *topic) lastLocked() uint64 {
	last := t.newestLocked()
	if losses := t.partition.lost(); len(losses) > 0 {
		last = max(last, losses[len(losses)-1].last)
	}
	return last
}

// oldestLocked returns the offset before the first frame for a subscriber who has nothing.
func (t *topic) oldestLocked() uint64 {
	if t.history.count == 0 {
		return t.head
	}
	return t.beforeLocked(0)
}

// beforeLocked returns the offset before the i-th oldest message: that of the last frame
// before it, also of a loss of the log.
func (t *topic) beforeLocked(i int) uint64 {
	before, first := t.history.lost, t.history.at(i).Position().Offset
	if i > 0 {
		before = t.history.at(i - 1).Position().Offset
	}
	for _, l := range t.partition.lost() {
		if l.first < first {
			before = max(before, min(l.last, first-1))
		}
	}
	return before
}

// newestFewLocked returns the offset before the newest n messages up to an offset. Expired
// messages do not count. If there are none, it returns upTo.
func (t *topic) newestFewLocked(n int, upTo uint64, now time.Time) uint64 {
	end := t.history.after(upTo)
	first := end
	if t.history.withTTL == 0 { // Fast path: none can have expired
		first = max(0, end-n)
	} else {
		for i := end - 1; i >= 0 && n > 0; i-- {
			if !t.history.at(i).Expired(now) {
				first = i
				n--
			}
		}
	}
	if first == end {
		return upTo
	}
	return t.beforeLocked(first)
}

// The fan-out of every topic may lag this far, however short its history is. A hundred
// publishers publish as much before the scheduler has started the fan-out.
const (
	lagMessages = 1000
	lagBytes    = 8 << 20
)

// lagsLocked reports whether the fan-out lags too far, with so many more messages: by half of the
// history's bound, and by at least lagMessages or lagBytes.
func (t *topic) lagsLocked(more int) bool {
	rule := t.rule.Load()
	return t.unsent+more >= max(rule.HistoryMessages/2, lagMessages) || t.unsentBytes >= max(rule.HistoryBytes/2, lagBytes)
}

func (t *topic) lags() *wire.Problem {
	t.broker.metrics.Limited.WithLabelValues("fan_out").Inc()
	return problem.New(wire.CodeOverloaded, "retry after retry_after_ms",
		"delivery on topic %s is too far behind its publishes", wire.Quote(t.name)).Retry(100 * time.Millisecond)
}

func (t *topic) positionLocked(offset uint64) wire.Position {
	return wire.Position{Topic: t.name, Epoch: t.epoch, Offset: offset}
}

// trimLocked evicts the oldest messages until the history is within its bounds. The newest
// message stays until it expires, whatever its size. Without subscribers that have a rate, an
// ephemeral topic keeps none.
func (t *topic) trimLocked(now time.Time) {
	keepsNone := t.keepsNoneLocked()
	for most := t.rule.Load(); t.history.count > 0; {
		f, reason := t.history.at(0), wire.GapExpired
		switch {
		case f.Position().Offset > t.mark:
			return
		case keepsNone:
			reason = wire.GapEvicted
		case now.Sub(f.Accepted) >= most.HistoryAge || f.Expired(now):
		case t.history.count > 1 && (t.history.count > most.HistoryMessages || t.history.bytes > most.HistoryBytes):
			reason = wire.GapEvicted
		default:
			return
		}
		t.evictLocked(reason, string(reason))
	}
}

// keepsNoneLocked reports whether every message is evicted that was offered.
func (t *topic) keepsNoneLocked() bool { return t.isEphemeral() && t.paced == 0 }

// evictLocked evicts the oldest message. The metrics have the label why.
func (t *topic) evictLocked(reason wire.GapReason, why string) {
	f := t.history.at(0)
	if offset := f.Position().Offset; offset > t.mark {
		t.mark, t.missed = offset, true
		t.unsent--
		t.unsentBytes -= f.Size()
	}
	t.history.pop(reason)
	t.broker.memory.Add(t.kind(), -int64(f.Size()))
	if !t.isEphemeral() { // nobody expects it to hold a message
		t.broker.metrics.Evicted.WithLabelValues(why).Inc()
	}
	f.Release()
}

// loseLocked drops the messages up to an offset. The fan-out calls Missed, in order with
// its offers, so that every subscriber gets the gap before newer messages.
func (t *topic) loseLocked(upTo uint64, reason wire.GapReason) {
	for t.history.count > 0 && t.history.at(0).Position().Offset <= upTo {
		t.evictLocked(reason, string(reason))
	}
	t.history.lost, t.history.reason = upTo, reason
	t.head, t.mark = max(t.head, upTo), max(t.mark, upTo)
	t.missLocked()
}

// missLocked has the fan-out call Missed.
func (t *topic) missLocked() {
	if len(t.subs) > 0 {
		t.missed = true
		t.maybeStartLocked()
	}
}

// delete deletes all messages. The deletion has its own offset, so every subscriber gets a
// gap, even if it had all messages. It reports false if the topic was forgotten.
func (t *topic) delete(e *Entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := e.Message.Position
	switch {
	case t.forgotten:
		return false
	case at.Offset == 0:
		at.Offset = t.nextLocked()
	case at.Epoch != t.epoch || at.Offset <= t.newestLocked():
		return true
	}
	e.Message.Position = t.positionLocked(at.Offset)
	t.loseLocked(at.Offset, wire.GapDeleted)
	return true
}

// lose drops messages that the log has lost. It reports false if the topic was forgotten.
func (t *topic) lose(e *Entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := e.Message.Position; at.Offset > t.history.lost && !t.forgotten {
		t.loseLocked(at.Offset, e.State.Reason)
	}
	return !t.forgotten
}

// loseEntries notes that the log has lost entries up to an offset; see partition.lose.
func (t *topic) loseEntries(upTo uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.head >= upTo:
		return
	case t.head == t.born:
		t.born = upTo
	}
	t.head = upTo
	if t.unsent == 0 {
		t.mark = upTo
	}
	t.missLocked()
}

// resume restores a new topic from the entry. It reports false if the topic was forgotten.
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

// restart begins another epoch, without the old messages. Subscribers get a gap,
// restarted.
func (t *topic) restart(epoch string, floor uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == epoch {
		return // it was created in the epoch
	}
	for t.history.count > 0 {
		t.evictLocked(wire.GapRestarted, string(wire.GapRestarted))
	}
	t.beginLocked(epoch, floor)
	for _, s := range t.subs {
		s.restarted = true
	}
	t.missLocked()
}

// sweep evicts expired messages, and reports whether the topic can be forgotten.
func (t *topic) sweep(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trimLocked(now)
	return t.isIdleLocked() && !now.Before(t.keepUntil)
}

// isIdleLocked reports whether the topic has no messages, and no subscriber needs it.
func (t *topic) isIdleLocked() bool {
	if t.history.count > 0 || t.pinned > 0 || t.expected > 0 || t.fanning || t.announcing.Load() {
		return false
	}
	for _, s := range t.subs {
		if s.restarted || s.doneTo.Load() <= t.lastLocked() {
			return false
		}
	}
	return true
}

// forget ends the topic and its subscriptions, unless the topic is in use. Its offsets are
// not used again, so positions stay unambiguous. An entry with an offset counts the topic
// as forgotten in any case. If the topic has a later change or is in use then, it stays, and
// counts as unused. Without an entry, the topic ends only if it has used no offset.
func (t *topic) forget(e *Entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case e == nil:
		if t.head != t.born {
			return false
		}
	case e.Message.Position.Offset > 0:
		head := e.State.Lost
		for t.history.count > 0 && t.history.at(0).Position().Offset <= head {
			t.evictLocked(wire.GapExpired, string(wire.GapExpired)) // it had expired before
		}
		t.partition.forget(t.name, head, e.Message.Position.Offset)
		if t.head > head {
			return false
		}
		t.head, t.born, t.mark = head, head, head
	}
	if !t.isIdleLocked() {
		return false
	}
	if t.head != t.born {
		t.partition.forget(t.name, t.head, 0)
	}
	if e != nil && e.Message.Position.Offset == 0 {
		e.Message.Position = t.positionLocked(t.head)
	}
	t.forgotten = true
	for _, s := range t.subs {
		s.index = left
	}
	if len(t.subs) > 0 {
		t.noteOccupancyLocked(false)
	}
	t.broker.countSubscriptions(-int64(len(t.subs)))
	t.partition.raiseFloor(t.head)
	return true
}
