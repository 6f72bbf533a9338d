package broker

import (
	"cmp"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A partition has the topics whose offsets come from one sequence of the log. The
// in-memory log has one partition.
//
// Two more partitions are local: no log has their topics, so these begin with the process, in
// epochs of their own. Broker.presence has the presence topics, which tell what this process
// sees. Broker.ephemeral has the ephemeral topics. They are apart, because many forgotten
// topics of one kind would otherwise cause gaps in patterns of the other.
type partition struct {
	local     bool                   // no log has its topics; immutable
	epoch     atomic.Pointer[string] // of the offsets; each topic has a copy
	floor     atomic.Uint64          // highest offset of a topic that was forgotten, of any name
	forgotten forgotten
	losses    atomic.Pointer[[]loss] // in order; nil: none
}

func newPartition(now time.Time, local bool) *partition {
	p, epoch := &partition{local: local}, newEpoch(now)
	p.epoch.Store(&epoch)
	return p
}

// newEpoch returns an epoch that sorts by time. Its last four digits are random: two
// daemons may begin in the same millisecond.
func newEpoch(now time.Time) string {
	const fourDigits, base = 36 * 36 * 36, 36 // the least number that has four
	return strconv.FormatInt(now.UnixMilli(), base) + strconv.FormatUint(fourDigits+rand.Uint64N((base-1)*fourDigits), base)
}

// raiseFloor raises the floor to offset, unless it is higher.
func (p *partition) raiseFloor(offset uint64) {
	for {
		floor := p.floor.Load()
		if offset <= floor || p.floor.CompareAndSwap(floor, offset) {
			return
		}
	}
}

// forget notes that a topic which had messages is forgotten, or could not be held. Its
// offsets are not used again. at is the offset of the OpForget entry, or 0 without one.
func (p *partition) forget(name string, head, at uint64) {
	p.forgotten.add(name, head, at)
	p.raiseFloor(head)
}

// begin begins an epoch. If the epoch is the current one, begin raises the floor and the
// newest number of a forgotten topic. It reports whether the epoch is another one. Only the
// number of topics forgotten earlier is kept.
func (p *partition) begin(epoch string, floor, number uint64) (another bool) {
	if another = *p.epoch.Swap(&epoch) != epoch; another {
		p.losses.Store(nil)
		p.floor.Store(floor)
	}
	if another || floor > p.floor.Load() || number > p.forgotten.newest() {
		p.raiseFloor(floor)
		p.forgotten.raise(number, p.floor.Load())
	}
	return another
}

// A loss says that the log has lost entries of any topics, up to the offset last. If first is
// lower than last, it stands for several losses that were merged: the oldest has the offset first,
// the newest the offset last, and those of the others are not known.
type loss struct{ first, last uint64 }

// maxLosses bounds the losses that are remembered one by one. The oldest are merged.
const maxLosses = 16

// lose notes a loss. It reports false if that is already known. Messages that a topic still
// has below the offset are not lost. Each reader gets the gap after these messages, and before
// newer ones.
func (p *partition) lose(l loss) bool {
	losses := p.lost()
	if n := len(losses); n > 0 && losses[n-1].last >= l.last {
		return false
	}
	losses = append(slices.Clone(losses), l)
	if len(losses) > maxLosses {
		losses[1].first = losses[0].first
		losses = losses[1:]
	}
	p.losses.Store(&losses)
	return true
}

// lost returns the losses, in order.
func (p *partition) lost() []loss {
	if p == nil {
		return nil
	}
	if losses := p.losses.Load(); losses != nil {
		return *losses
	}
	return nil
}

// forgotten numbers the forgotten topics that had messages, and remembers the last of them.
// The number is the offset of the log's entry, so that it means the same after a crash. If
// there is none, the broker counts.
//
// The newest number is the offset of a pattern's position (PatternPosition). When a client
// resumes a pattern, the broker knows from it which topics were forgotten since.
type forgotten struct {
	mu     sync.Mutex        // taken after a topic's lock
	number uint64            // the newest
	before uint64            // topics up to this number are not remembered
	floor  uint64            // no topic that is not remembered had a message above it
	last   []forgottenTopic  // in the order of their numbers
	heads  map[string]uint64 // of the topics in last, the highest of each name
}

type forgottenTopic struct {
	name   string
	head   uint64 // offset of its last message
	number uint64
}

// forgottenRemembered is how many forgotten topics are remembered, in about 1 MiB. Any
// pattern may have matched earlier ones.
const forgottenRemembered = 4096

// add adds a topic. at is the offset of the entry; 0: there is none.
func (f *forgotten) add(name string, head, at uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.number = max(f.number+1, at)
	if len(f.last) == forgottenRemembered {
		oldest := f.last[0]
		f.before, f.floor = oldest.number, max(f.floor, oldest.head)
		if f.heads[oldest.name] <= oldest.head {
			delete(f.heads, oldest.name)
		}
		f.last = f.last[1:]
	}
	f.last = append(f.last, forgottenTopic{name, head, f.number})
	if f.heads == nil {
		f.heads = make(map[string]uint64)
	}
	f.heads[name] = max(f.heads[name], head)
}

// below returns an upper bound for the offsets of all messages of forgotten topics of a name.
func (f *forgotten) below(name string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(f.floor, f.heads[name])
}

// has reports whether a topic of that name, forgotten at offset or above, is remembered.
func (f *forgotten) has(name string, offset uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.last, func(t forgottenTopic) bool { return t.name == name && t.head >= offset })
}

// newest returns the newest number.
func (f *forgotten) newest() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.number
}

// raise sets the newest number, unless it is lower. Topics up to that number are not
// remembered; none of them had a message above floor.
func (f *forgotten) raise(number, floor uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.number = max(f.number, number)
	f.before, f.floor, f.last, f.heads = f.number, floor, nil, nil
}

// since reports whether, after the given number, a topic that matches the pattern was
// forgotten with messages above the offsets in had. It also returns true if that is
// unknown: the topics are not remembered, or the search has reached its bound.
func (f *forgotten) since(pattern string, number uint64, had map[string]uint64, s *Search) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if number >= f.number {
		return false
	}
	first, _ := slices.BinarySearchFunc(f.last, number+1, func(t forgottenTopic, n uint64) int { return cmp.Compare(t.number, n) })
	newer := f.last[first:]
	if number < f.before || len(newer) > s.recalls {
		return true
	}
	s.recalls -= len(newer)
	return slices.ContainsFunc(newer, func(t forgottenTopic) bool { return wire.Matches(pattern, t.name) && t.head > had[t.name] })
}

// partitionOf returns the partition of a topic, which never changes.
func (b *Broker) partitionOf(topic string) *partition {
	if _, ok := wire.PresenceOf(topic); ok {
		return b.presence
	}
	if b.IsEphemeral(topic) {
		return b.ephemeral
	}
	return b.partitions[b.log.Partition(topic)]
}

// IsEphemeral reports whether the most specific rule that matched the topic when the process
// began makes it ephemeral.
func (b *Broker) IsEphemeral(topic string) bool {
	for ephemeral := range b.ephemerals.matching(topic) {
		return *ephemeral
	}
	return false
}

// ephemerals returns the tree of Broker.ephemerals.
func ephemerals(rules []Rule) (t tree[bool]) {
	if !slices.ContainsFunc(rules, func(r Rule) bool { return r.Ephemeral }) {
		return t
	}
	for _, r := range rules {
		at, _ := t.at(r.Pattern, true)
		at.value = new(r.Ephemeral)
	}
	return t
}

// partitionsOf returns the partitions that the position of a pattern covers. It is the one of
// the presence topics or those of the log, never both, because a wildcard does not match the
// first segment of a presence topic. No pattern's position covers ephemeral topics.
func (b *Broker) partitionsOf(pattern string) []*partition {
	if _, ok := wire.PresenceOf(pattern); ok {
		return []*partition{b.presence}
	}
	return b.partitions
}

// Epoch returns the epoch of the positions of a topic or pattern.
func (b *Broker) Epoch(name string) string {
	if !wire.IsPattern(name) {
		return *b.partitionOf(name).epoch.Load()
	}
	partitions := b.partitionsOf(name)
	if len(partitions) == 1 {
		return *partitions[0].epoch.Load()
	}
	all := fnv.New64a() // changes when any of the epochs changes
	for _, p := range partitions {
		all.Write([]byte(*p.epoch.Load() + ".")) // never fails: hash.Hash
	}
	return strconv.FormatUint(all.Sum64(), 36)
}

// PatternPosition returns the current position of a pattern. Its offset is the sum of the
// newest numbers of forgotten topics.
func (b *Broker) PatternPosition(pattern string) wire.Position {
	at := wire.Position{Topic: pattern, Epoch: b.Epoch(pattern)}
	for _, p := range b.partitionsOf(pattern) {
		at.Offset += p.forgotten.newest()
	}
	return at
}

// ForgottenSince reports whether the pattern may have lost messages after its position:
// see forgotten.since. The position is not above PatternPosition.
func (b *Broker) ForgottenSince(position wire.Position, had map[string]uint64, s *Search) bool {
	partitions := b.partitionsOf(position.Topic)
	total, numbers := uint64(0), make([]uint64, len(partitions))
	for i, p := range partitions {
		numbers[i] = p.forgotten.newest()
		total += numbers[i]
	}
	passed := total - position.Offset // in all partitions, and at most that many in each
	for i, p := range partitions {
		if p.forgotten.since(position.Topic, numbers[i]-min(passed, numbers[i]), had, s) {
			return true
		}
	}
	return false
}

// Covers reports whether a pattern that is resumed from a position announces what the client
// has lost of a topic that matches, if that was forgotten: in this epoch, or together with its
// epoch. Otherwise the topic must announce it.
func (b *Broker) Covers(pattern, topic wire.Start) bool {
	switch p := b.partitionOf(topic.Topic); {
	case topic.From != wire.FromPosition, pattern.Epoch != b.Epoch(pattern.Topic):
		return true
	case p == b.ephemeral:
		return topic.Epoch == *p.epoch.Load() && topic.After >= p.forgotten.below(topic.Topic)
	default:
		return topic.Epoch == *p.epoch.Load()
	}
}

// Detached returns a subscription to no topic, whose history has lost everything up to the
// position. If restarted is set, Read returns a gap, restarted.
func (b *Broker) Detached(position wire.Position, restarted bool) *Subscription {
	t := &topic{name: position.Topic, broker: b, epoch: position.Epoch, head: position.Offset, mark: position.Offset}
	if partitions := b.partitionsOf(position.Topic); len(partitions) == 1 {
		t.partition = partitions[0]
	}
	t.history = history{lost: position.Offset, reason: wire.GapEvicted}
	t.rule.Store(&b.settings.Load().general[0])
	return &Subscription{topic: t, index: left, restarted: restarted}
}

// Tell publishes a message of the daemon's own to a presence topic. No log gets it.
//
// A topic that nobody watches costs nothing: unless it exists, or a follower's pattern
// matches it, Tell only counts the message as published and forgotten. So a client that
// resumes from an earlier position gets a gap. The error is a *wire.Problem: overloaded.
func (b *Broker) Tell(topic, key string, data []byte, now time.Time) error {
	if !b.watched(topic) {
		return nil
	}
	m := &wire.Message{Position: wire.Position{Topic: topic}, Time: now.UnixMilli(), Key: key, Data: data}
	if err := b.memory.Admit(int64(m.Size())); err != nil {
		return err
	}
	_, err := b.Apply(Entry{Op: OpPublish, Message: m, Accepted: now})
	return err
}

// Retract deletes the messages of a presence topic. Every subscriber gets a gap, deleted,
// and every client that resumes from an earlier position gets a gap. The error is a
// *wire.Problem: overloaded.
func (b *Broker) Retract(topic string) error {
	for b.watched(topic) {
		t, err := b.topic(topic, nil)
		if err != nil {
			return err
		}
		b.announce(t) // followers join before the deletion
		if t.delete(&Entry{Message: &wire.Message{Position: wire.Position{Topic: topic}}}) {
			return nil
		}
	}
	return nil
}

// watched reports whether a change of a presence topic must be kept. If not, it has counted
// the change as one of a forgotten topic, whose offset is above every earlier position.
func (b *Broker) watched(topic string) bool {
	isWatched := func() bool { return b.Has(topic) || len(b.Followers(topic)) > 0 }
	if isWatched() {
		return true
	}
	b.presence.forget(topic, b.presence.floor.Add(1), 0)
	// A client that came before the count may resume from an earlier position without a gap.
	return isWatched()
}

// Watch returns the present position of a presence topic. It creates the topic if
// necessary, and keeps it for a minute, so that a client can subscribe from the position.
// The error is a *wire.Problem: overloaded.
func (b *Broker) Watch(topic string, now time.Time) (wire.Position, error) {
	for {
		t, err := b.topic(topic, nil)
		if err != nil {
			return wire.Position{}, err
		}
		t.mu.Lock()
		t.keepUntil = now.Add(awayTime)
		at, forgotten := t.positionLocked(t.head), t.forgotten
		t.mu.Unlock()
		if !forgotten {
			return at, nil
		}
	}
}
