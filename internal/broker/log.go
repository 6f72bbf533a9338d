package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Log decides the order of all changes to topics, and may keep them. The broker asks it
// with Append, and changes a topic only when the log calls Apply. The in-memory log is
// the default. It keeps nothing itself.
//
// A log that keeps changes assigns their offsets, which may skip numbers. They rise within
// a partition, also across restarts of the process, until the log begins another epoch. The
// in-memory log calls Apply with offset 0: Apply assigns the next offset of the topic, under
// the topic's lock.
//
// Apply may be called concurrently for different partitions, and for entries with
// offset 0. The other entries of a partition are applied one after the other, in order.
// An entry may be applied again: Apply ignores entries that it has.
//
// A log remembers keys for some time. A second entry with the same Key within that time
// gets the result of the first.
type Log interface {
	// Append adds changes to the log, in order. It never blocks. done is called once, when
	// all of them have been applied or have failed. After an error an entry may still be in
	// the log, so only an entry with a Key can be retried without a duplicate.
	Append(e []Entry, done func([]Result))

	// Feed applies the entries of the log, and then new ones, until ctx ends or apply
	// fails. Once it has returned an error, Append refuses every entry.
	Feed(ctx context.Context, apply func(Entry) error) error

	// Partitions returns the number of partitions, and Partition that of a topic.
	Partitions() int
	Partition(topic string) int

	// Applied reports whether Feed has applied all entries of a partition up to a
	// position. Then the position is valid for every topic of the partition, also for one
	// whose head is lower. A log that lets Apply assign offsets returns false. Applied is
	// called under a topic's lock, and must not call the broker.
	Applied(at wire.Position) bool
}

// Op is a kind of change.
type Op uint8

// The kinds of changes.
const (
	// OpPublish adds a message to its topic.
	OpPublish Op = iota
	// OpDelete empties the history of a topic. It has an offset of its own.
	OpDelete
	// OpLost says that the log has lost messages of a topic up to the offset. Subscribers
	// that have not received all of them get a gap.
	OpLost
	// OpForget removes a topic that holds nothing and has no subscriber. If offsets rise
	// through a partition, each daemon may forget a topic by itself, without an entry that
	// others get. If each topic has offsets of its own, only the daemon that assigns them
	// may append it.
	//
	// With an offset, it counts one forgotten topic in any case, so that a log gives the
	// same count when it is applied again. A topic that is in use by then stays.
	OpForget
	// OpEpoch begins an epoch of a partition: its topics lose their messages, and their
	// subscribers get a gap, restarted. Within the same epoch, it raises the floor and the
	// number of forgotten topics, and says which entries the log has lost. Then every topic
	// and pattern has a gap, lost, behind the messages that it holds.
	OpEpoch
	// OpTopic restores a topic, unless it exists. Entries with its messages follow.
	OpTopic
	// OpKey adds the result of an earlier publish with an idempotency key.
	OpKey
)

// An Entry is one change.
type Entry struct {
	Op Op

	// Message is published by OpPublish. For the other kinds only its Position counts. The
	// offset is that of the deletion, of the last lost message, of the forgetting, of the
	// partition's floor, of the topic's newest message, or of the earlier publish.
	Message *wire.Message

	TTL      time.Duration // of the message; 0: none
	Accepted time.Time     // when this daemon received the entry; zero: at Message.Time
	Key      Key           // of a publish; zero: none
	State    *State        // of OpLost, OpForget, OpEpoch and OpTopic

	route Route // of a publish to this broker; may be empty
}

// State is the state of a partition or of a topic in an entry.
type State struct {
	Partition int    // of OpEpoch
	Forgotten uint64 // of OpEpoch: the newest number of a forgotten topic

	Born   uint64         // of OpTopic: the offset before the first message; of OpEpoch, if it stands for several losses: where the first was
	Lost   uint64         // of OpTopic and OpEpoch: the offset of the last lost message; of OpForget: the topic's newest offset when it was idle
	Reason wire.GapReason // of OpTopic and OpLost: why the last one was lost
}

// A Result is the result of an Entry.
type Result struct {
	wire.Published
	Err error
}

// Errors of Apply, for entries with offset 0.
var (
	// ErrNoTopic says that the topic does not exist.
	ErrNoTopic = errors.New("the topic does not exist")

	errInUse = errors.New("the topic is in use")
)

// Apply makes one change, and returns its position. Nothing else changes a topic.
//
// An entry with offset 0 gets the next offset of its topic, or fails: the topic may not
// exist, or a limit is reached. An entry with an offset never fails, since the log has it:
// if this daemon cannot hold it, subscribers get a gap.
func (b *Broker) Apply(e Entry) (wire.Position, error) {
	now := e.Accepted
	if now.IsZero() || e.Message.Position.Offset > 0 {
		now = time.Now()
	}
	if e.Accepted.IsZero() { // if the clock was set back, a future time counts as now
		e.Accepted = now.Add(-max(0, now.Sub(time.UnixMilli(e.Message.Time))))
	}
	if b.wasLogged(&e) {
		return e.Message.Position, nil
	}
	switch e.Op {
	case OpPublish:
		return b.applyPublish(&e, now)
	case OpDelete:
		return b.applyDelete(&e)
	case OpLost:
		b.applyLost(&e)
	case OpForget:
		return b.applyForget(&e)
	case OpEpoch:
		// The partition changes first, so that topics that are created meanwhile begin in the new epoch.
		at, p := e.Message.Position, b.partitions[e.State.Partition]
		was, lost := *p.epoch.Load(), e.State.Lost
		if p.begin(at.Epoch, at.Offset, e.State.Forgotten) {
			b.eachOf(p, func(t *topic) { t.restart(at.Epoch, at.Offset) })
			b.keys.forgetEpoch(was)
		}
		if lost > 0 && p.lose(loss{first: cmp.Or(e.State.Born, lost), last: lost}) {
			b.eachOf(p, func(t *topic) { t.loseEntries(lost) })
		}
	case OpTopic:
		t := b.topicOrForget(e.Message.Position)
		for t != nil && !t.resume(&e, now.Add(awayTime)) {
			t = b.topicOrForget(e.Message.Position)
		}
	case OpKey:
		b.keys.applied(e.Key, wire.Published{Position: e.Message.Position, Time: e.Message.Time}, now)
	default:
		panic(fmt.Sprintf("BUG: an entry of kind %d", e.Op))
	}
	return e.Message.Position, nil
}

// wasLogged reports whether an entry of the log is of a topic that has become ephemeral since. Then
// the topic cannot be held, as far as the log's patterns are concerned.
func (b *Broker) wasLogged(e *Entry) bool {
	at := e.Message.Position
	if at.Offset == 0 || at.Topic == "" || e.Op == OpKey || e.route.topic != nil || !b.IsEphemeral(at.Topic) {
		return false
	}
	if !b.isPast(at) {
		b.partitions[b.log.Partition(at.Topic)].forget(at.Topic, at.Offset, at.Offset)
	}
	return true
}

// isPast reports whether an entry at a position changes nothing: its epoch is over, or
// its topic was forgotten since.
func (b *Broker) isPast(at wire.Position) bool {
	p := b.partitions[b.log.Partition(at.Topic)]
	switch {
	case at.Epoch != *p.epoch.Load():
		return true
	case at.Offset > p.floor.Load() || b.Has(at.Topic):
		return false
	}
	if !p.forgotten.has(at.Topic, at.Offset) { // it could not be held, or is not remembered
		p.forgotten.add(at.Topic, at.Offset, at.Offset)
	}
	return true
}

func (b *Broker) applyDelete(e *Entry) (wire.Position, error) {
	t := b.find(e.Message.Position.Topic)
	if t != nil && t.delete(e) {
		return e.Message.Position, nil
	}
	at := e.Message.Position
	if at.Offset == 0 {
		return wire.Position{}, ErrNoTopic
	}
	if !b.isPast(at) {
		b.partitionOf(at.Topic).forget(at.Topic, at.Offset, at.Offset)
	}
	return at, nil
}

func (b *Broker) applyLost(e *Entry) {
	at := e.Message.Position
	for !b.isPast(at) {
		t := b.topicOrForget(at)
		if t == nil {
			return
		}
		if t.lose(e) {
			b.announce(t) // followers join where the topic begins, and read the gap
			return
		}
	}
}

// topicOrForget returns the topic of a position. If it cannot be held, it counts as
// forgotten, and the result is nil.
func (b *Broker) topicOrForget(at wire.Position) *topic {
	t, err := b.topic(at.Topic, nil)
	if err != nil {
		b.partitionOf(at.Topic).forget(at.Topic, at.Offset, at.Offset)
	}
	return t
}

func (b *Broker) applyForget(e *Entry) (wire.Position, error) {
	at, p := e.Message.Position, b.partitionOf(e.Message.Position.Topic)
	if at.Offset > 0 && (at.Epoch != *p.epoch.Load() || at.Offset <= p.forgotten.newest()) {
		return at, nil
	}
	err := b.remove(at.Topic, func(t *topic) bool { return t.forget(e) })
	if at.Offset == 0 {
		return e.Message.Position, err
	}
	if errors.Is(err, ErrNoTopic) {
		p.forget(at.Topic, e.State.Lost, at.Offset)
	}
	return at, nil
}

// remove removes a topic if forget returns true. forget is called under the shard's lock.
func (b *Broker) remove(name string, forget func(*topic) bool) error {
	s := b.shard(name)
	s.mu.Lock()
	t := s.topics[name]
	forgets := t != nil && forget(t)
	if forgets {
		delete(s.topics, t.name)
		b.names.remove(t.name)
		b.countTopics(-1)
		if t.partition.local {
			b.localTopics.Add(-1)
		}
		b.metrics.TopicsForgotten.Inc()
	}
	s.mu.Unlock()
	switch {
	case t == nil:
		return ErrNoTopic
	case !forgets:
		return errInUse
	}
	for _, sub := range t.subs { // without the lock: a forgotten topic does not change
		sub.to.Forgotten()
	}
	return nil
}

// awayTime is how long a restored topic is kept without subscribers, so that clients can
// reconnect to it.
const awayTime = time.Minute

// memoryLog is the in-memory Log.
type memoryLog struct{ broker *Broker }

func (l memoryLog) Append(e []Entry, done func([]Result)) {
	results := make([]Result, len(e))
	for i := range e {
		at, err := l.broker.Apply(e[i])
		results[i] = Result{wire.Published{Position: at, Time: e[i].Message.Time}, err}
	}
	done(results)
}

func (memoryLog) Feed(context.Context, func(Entry) error) error { return nil }

func (memoryLog) Applied(wire.Position) bool { return false }

func (memoryLog) Partitions() int { return 1 }

func (memoryLog) Partition(string) int { return 0 }
