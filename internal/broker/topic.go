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

// errForgotten says that the topic was forgotten between finding and locking it:
// look it up again.
var errForgotten = errors.New("topic forgotten")

// A topic orders messages, retains the recent ones, and knows who listens.
//
// Messages leave in offset order for every subscriber; one may miss messages
// (a gap tells it so) but never sees them out of order or twice.
// publish holds mu only to append. One fan-out goroutine at a time reads the
// history from mark on and offers it to a copy of subs, without the lock, so
// no subscriber can slow a publisher or another topic.
// What the fan-out has not handed over yet is never evicted; a topic whose
// fan-out lags too far refuses publishes instead, so healthy subscribers are
// never made to lose.
type topic struct {
	name   string    // immutable
	broker *Broker   // immutable
	born   uint64    // offset before its first message; immutable once it is in its shard
	told   sync.Once // the followers of its name; before the first message

	telling atomic.Bool // they are being told

	mu          sync.Mutex // guards the fields below; taken after the shard's lock, never before
	limits      *Rule      // immutable itself; another when the settings change
	head        uint64     // offset of the newest message; 0 before the first
	history     history    // held messages, oldest first
	subs        []*Subscription
	pinned      int    // of subs, how many keep it from being forgotten
	fanning     bool   // a fan-out goroutine is running, or about to
	mark        uint64 // offset up to which the fan-out has offered; head when not fanning
	unsent      int    // messages above mark
	unsentBytes int
	emptied     bool      // and the fan-out has to tell so before it goes on
	forgotten   bool      // the shard no longer holds it
	keepUntil   time.Time // before which it is not forgotten
}

func newTopic(b *Broker, name string) *topic {
	floor := b.floor.Load()
	return &topic{
		name: name, broker: b, limits: b.force.Load().rules.of(name),
		born: floor, head: floor, mark: floor, history: history{lost: floor, reason: wire.GapEvicted},
	}
}

// rule puts other limits in force.
func (t *topic) rule(limits *Rule, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits = limits
	t.trimLocked(now)
}

// publish appends m and makes sure that a fan-out is going, or does it.
func (t *topic) publish(m *wire.Message, ttl time.Duration, now time.Time) (wire.Published, error) {
	published, few, err := t.append(m, ttl, now)
	if few {
		t.fanOutHere()
	}
	return published, err
}

// append appends m. few says that its caller is to fan out.
func (t *topic) append(m *wire.Message, ttl time.Duration, now time.Time) (published wire.Published, few bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.forgotten:
		return wire.Published{}, false, errForgotten
	case t.overloadedLocked():
		return wire.Published{}, false, t.overloaded()
	}
	t.head++
	m.Position = t.positionLocked(t.head)
	m.Time = now.UnixMilli()
	t.history.push(frame.New(m, now, ttl, t.broker.memory))
	t.broker.memory.Add(memory.History, int64(m.Size()))
	few = t.maybeFanOutLocked(m)
	t.trimLocked(now)
	return wire.Published{Position: m.Position, Time: m.Time}, few, nil
}

// A fan-out may always lag by so much, however short the history is: a hundred
// publishers at once get that far before the scheduler has begun it.
const (
	lagMessages = 1000
	lagBytes    = 8 << 20
)

// overloadedLocked reports whether the fan-out lags too far: by half of what the
// history may hold, and by more than it always may.
func (t *topic) overloadedLocked() bool {
	return t.unsent >= max(t.limits.HistoryMessages/2, lagMessages) || t.unsentBytes >= max(t.limits.HistoryBytes/2, lagBytes)
}

func (t *topic) overloaded() *wire.Problem {
	t.broker.metrics.Limited.WithLabelValues("fan_out").Inc()
	return wire.NewProblem(wire.CodeOverloaded, "publish it again after the stated time",
		"the fan-out of topic %q lags too far", t.name).Retry(100 * time.Millisecond)
}

func (t *topic) positionLocked(offset uint64) wire.Position {
	return wire.Position{Topic: t.name, Epoch: t.broker.epoch, Offset: offset}
}

// trimLocked lets go of the oldest messages until the history is within its
// bounds. The newest stays until its age is over, whatever its size.
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

// evictLocked lets go of the oldest message. why is what metrics say.
func (t *topic) evictLocked(reason wire.GapReason, why string) {
	f := t.history.front()
	t.history.pop(reason)
	t.broker.memory.Add(memory.History, -int64(f.Size()))
	t.broker.metrics.Evicted.WithLabelValues(why).Inc()
	f.Release()
}

// excessLocked says why the oldest message has to go, or "".
func (t *topic) excessLocked(f *frame.Frame, now time.Time) wire.GapReason {
	most := t.limits
	switch {
	case now.Sub(f.Accepted()) >= most.HistoryAge || f.Expired(now):
		return wire.GapExpired
	case t.history.len() > 1 && (t.history.len() > most.HistoryMessages || t.history.bytes > most.HistoryBytes):
		return wire.GapEvicted
	}
	return ""
}

// sweep trims by age and reports whether the topic was forgotten.
func (t *topic) sweep(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trimLocked(now)
	if t.history.len() > 0 || t.pinned > 0 || t.fanning || t.telling.Load() || t.broker.keepsTopics(now) || now.Before(t.keepUntil) || !t.settledLocked() {
		return false
	}
	t.forgotten = true
	for _, s := range t.subs {
		s.index = gone
	}
	t.broker.countSubscriptions(-int64(len(t.subs)))
	t.broker.raiseFloor(t.head)
	if t.head > t.born {
		t.broker.forgotten.add(t.name, t.head)
	}
	return true
}

// settledLocked reports whether nobody has anything of the topic to come.
func (t *topic) settledLocked() bool {
	for _, s := range t.subs {
		if s.settled.Load() <= t.head {
			return false
		}
	}
	return true
}
