package broker

import (
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A partition is the part of the topics whose offsets one sequence of the log gives.
// The in-memory log has one.
type partition struct {
	epoch     atomic.Pointer[string] // the lifetime of the offsets; a topic has its own copy
	floor     atomic.Uint64          // highest offset of a topic that was forgotten
	forgotten forgotten

	// first is held while a topic gets its first offset, and while a topic is forgotten:
	// a log keeps both in the order in which the floor was read and raised. It is taken
	// after a topic's lock.
	first sync.Mutex
}

func newPartition(now time.Time) *partition {
	p, epoch := &partition{}, newEpoch(now)
	p.epoch.Store(&epoch)
	return p
}

// newEpoch returns an epoch that sorts by time. Four random digits keep the epochs of
// daemons apart that begin in the same millisecond.
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

// forget counts a topic with messages that is forgotten, or could not be held. Its
// offsets will not be used again.
func (p *partition) forget(name string, head uint64) {
	p.raiseFloor(head)
	p.forgotten.add(name, head)
}

// begin begins an epoch, or, within the same one, only raises the floor. It reports
// whether the epoch is another one. Nothing is remembered of the count topics that were
// forgotten before it.
func (p *partition) begin(epoch string, floor, count uint64) (another bool) {
	if another = *p.epoch.Swap(&epoch) != epoch; another {
		p.floor.Store(floor)
		p.forgotten.restore(count)
	}
	p.raiseFloor(floor)
	return another
}

// forgotten counts the topics that were forgotten with messages, and remembers the last
// of them.
//
// The count is the offset of a pattern's position (PatternPosition). A client that
// resumes a pattern learns from it that topics were created and forgotten while it was
// away: nothing else is left of them.
type forgotten struct {
	mu    sync.Mutex // taken after a topic's lock
	count uint64
	begun uint64           // the count before the first in last
	last  []forgottenTopic // number n at n-begun, modulo forgottenRemembered
}

type forgottenTopic struct {
	name string
	head uint64 // offset of its last message
}

// forgottenRemembered is how many forgotten topics are remembered, in 1 MiB at most. Of
// earlier ones, every pattern may have lost something.
const forgottenRemembered = 4096

func (f *forgotten) add(name string, head uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := forgottenTopic{name, head}
	if len(f.last) < forgottenRemembered {
		f.last = append(f.last, t)
	} else {
		f.last[(f.count-f.begun)%forgottenRemembered] = t
	}
	f.count++
}

// has reports whether a topic of that name is remembered, forgotten at offset or above.
func (f *forgotten) has(name string, offset uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n := range uint64(len(f.last)) {
		if t := f.last[(f.count-f.begun-1-n)%forgottenRemembered]; t.name == name && t.head >= offset {
			return true
		}
	}
	return false
}

func (f *forgotten) total() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// restore continues from a count, unless there were more. It remembers nothing.
func (f *forgotten) restore(count uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count = max(f.count, count)
	f.begun, f.last = f.count, nil
}

// since reports whether, after the given count, a topic that matches the pattern was
// forgotten with messages above the offsets in had. It also returns true if that is not
// known: the topic is not remembered, or the search has reached its bound.
func (f *forgotten) since(pattern string, count uint64, had map[string]uint64, s *Search) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	passed := f.count - count
	switch {
	case passed == 0:
		return false
	case passed > uint64(len(f.last)) || !s.recall(passed):
		return true
	}
	for n := count; n < f.count; n++ {
		t := f.last[(n-f.begun)%forgottenRemembered]
		if wire.Matches(pattern, t.name) && t.head > had[t.name] {
			return true
		}
	}
	return false
}

func (b *Broker) partitionOf(topic string) *partition { return b.partitions[b.log.Partition(topic)] }

// Epoch returns the epoch of a topic's positions, or of a pattern's.
func (b *Broker) Epoch(name string) string {
	switch {
	case !wire.IsPattern(name):
		return *b.partitionOf(name).epoch.Load()
	case len(b.partitions) == 1:
		return *b.partitions[0].epoch.Load()
	}
	all := fnv.New64a() // a pattern's positions end with any of the epochs
	for _, p := range b.partitions {
		all.Write([]byte(*p.epoch.Load() + ".")) // never fails: hash.Hash
	}
	return strconv.FormatUint(all.Sum64(), 36)
}

// PatternPosition returns the current position of a pattern. Its offset is the number of
// topics that were forgotten.
func (b *Broker) PatternPosition(pattern string) wire.Position {
	at := wire.Position{Topic: pattern, Epoch: b.Epoch(pattern)}
	for _, p := range b.partitions {
		at.Offset += p.forgotten.total()
	}
	return at
}

// ForgottenSince reports whether the pattern lost something after its position, or may
// have: see forgotten.since. The position is not beyond PatternPosition.
func (b *Broker) ForgottenSince(position wire.Position, had map[string]uint64, s *Search) bool {
	total, counts := uint64(0), make([]uint64, len(b.partitions))
	for i, p := range b.partitions {
		counts[i] = p.forgotten.total()
		total += counts[i]
	}
	passed := total - position.Offset // in all partitions, so at most so many in each
	for i, p := range b.partitions {
		if p.forgotten.since(position.Topic, counts[i]-min(passed, counts[i]), had, s) {
			return true
		}
	}
	return false
}

// Detached returns a subscription to no topic. Its history lost everything up to the
// position. If restarted is set, Read announces that.
func (b *Broker) Detached(position wire.Position, restarted bool) *Subscription {
	t := &topic{name: position.Topic, broker: b, epoch: position.Epoch, head: position.Offset, mark: position.Offset}
	t.history = history{lost: position.Offset, reason: wire.GapEvicted}
	t.rule.Store(&b.force.Load().rules.general[0])
	return &Subscription{topic: t, index: gone, restarted: restarted}
}
