package broker

import (
	"sync"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// forgotten counts the topics that were forgotten with messages that someone may
// not have had, and remembers the last of them.
//
// Who follows a pattern is told the count (PatternPosition). If he comes back with it,
// topics that were made and forgotten while he was away are found here: there is
// nothing else left of them, and he must hear of the loss.
type forgotten struct {
	mu    sync.Mutex // after a topic's lock
	count uint64
	begun uint64           // the count of which last remembers the next
	last  []forgottenTopic // number n at n-begun, modulo forgottenRemembered
}

type forgottenTopic struct {
	name string
	head uint64 // offset of its last message
}

// forgottenRemembered is how many forgotten topics are remembered, which takes 1 MiB
// at most; of those before, any pattern may have lost something.
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

func (f *forgotten) total() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// restore begins with a count, of which nothing is remembered.
func (f *forgotten) restore(count uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count, f.begun, f.last = count, count, nil
}

// since reports whether a topic that the pattern stands for was forgotten after the
// given count with messages above those had, or may have been: it is no longer
// remembered, or the search has looked at as many as it may.
func (f *forgotten) since(pattern string, count uint64, had map[string]uint64, s *Search) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if count >= f.count {
		return count > f.count // it is of no count of ours
	}
	if passed := f.count - count; passed > uint64(len(f.last)) || !s.recall(passed) {
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

// PatternPosition returns the position of a pattern as of now: its offset is the
// count of topics that were forgotten.
func (b *Broker) PatternPosition(pattern string) wire.Position {
	return wire.Position{Topic: pattern, Epoch: b.epoch, Offset: b.forgotten.total()}
}

// ForgottenSince reports whether something was lost, or may have been, that the
// pattern stood for after its position, which is of this epoch, and that had, offsets
// by topic, has not.
func (b *Broker) ForgottenSince(position wire.Position, had map[string]uint64, s *Search) bool {
	return b.forgotten.since(position.Topic, position.Offset, had, s)
}

// Detached returns a subscription to no topic, for telling a gap: its history has
// lost all up to the position, or, restarted, knows nothing of the position before.
func (b *Broker) Detached(position wire.Position, restarted bool) *Subscription {
	t := newTopic(b, position.Topic)
	t.head, t.mark = position.Offset, position.Offset
	t.history.lost = position.Offset
	return &Subscription{topic: t, index: gone, restarted: restarted}
}
