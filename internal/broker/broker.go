// Package broker orders messages by topic, retains the recent ones, and offers them to
// subscribers.
//
// Locks are taken in this order: that of memory.Account while it evicts, a shard's, a
// topic's, a frame's. The locks of the names, of the forgotten topics and of the
// followers come last, one at a time. The lock of a Subscriber is taken before all of
// them, since a session reads histories under its lock. So no lock of this package is
// held while the package calls a Subscriber or a Follower.
package broker

import (
	"context"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Subscriber is offered a topic's messages as they are published.
type Subscriber interface {
	// Offer hands over messages in the order of their offsets. It must not block or call
	// the broker. One subscription gets one Offer at a time. The subscriber must not keep
	// the slice. now is the current time, roughly.
	Offer(frames []*frame.Frame, now time.Time)

	// Missed says that messages were deleted or lost before they could be offered: the
	// next Read returns a gap. It comes in order with the offers, and has the same duties.
	Missed()

	// Forgotten says that the topic was forgotten, which ends the subscription. It did not
	// pin the topic.
	Forgotten()
}

// shards is the number of parts of the topic map: enough that two cores seldom lock the
// same one, few enough for a short sweep.
const shards = 64

// A Broker has the daemon's topics. All methods may be called concurrently.
//
// Publish asks the Log for the order of changes, and the Log calls Apply, which stores
// the message. Each topic has at most one fan-out, which runs while there are messages
// to offer: in a goroutine of the broker, or in the publisher's if there are few
// subscribers.
type Broker struct {
	settings  atomic.Pointer[settings] // in force
	metrics   *metrics.Metrics
	seed      maphash.Seed
	shards    [shards]shard
	follows   follows
	names     names
	occupancy occupancy
	reloads   sync.Mutex // held by a reload

	keepUntil     atomic.Int64 // Unix nanoseconds; see KeepTopics
	forgetting    atomic.Int64 // Appends that forget topics and are under way
	topics        atomic.Int64 // their number
	localTopics   atomic.Int64 // those of them that no log has
	subscriptions atomic.Int64
	memory        *memory.Account // immutable

	log        Log            // immutable
	partitions []*partition   // of the log; immutable
	presence   *partition     // local; immutable
	ephemeral  *partition     // local; immutable
	ephemerals tree[bool]     // whether the rules of the first settings make topics ephemeral; immutable
	keys       *keys          // immutable
	fanOuts    sync.WaitGroup // one for each running fan-out
}

type shard struct {
	mu     sync.RWMutex
	topics map[string]*topic
}

// New returns an empty broker on the in-memory log, whose epoch begins at now. Its owner
// calls Sweep about once a second, and Close at the end.
func New(cfg Config, m *metrics.Metrics, now time.Time) *Broker {
	return NewWithLog(cfg, m, now, func(b *Broker) Log { return memoryLog{b} })
}

// NewWithLog is New with another log, which open returns. Its owner also calls Feed.
func NewWithLog(cfg Config, m *metrics.Metrics, now time.Time, open func(*Broker) Log) *Broker {
	f := newSettings(cfg)
	b := &Broker{metrics: m, seed: maphash.MakeSeed()}
	b.presence, b.ephemeral, b.ephemerals = newPartition(now, true), newPartition(now, true), ephemerals(f.Rules)
	b.keys = newKeys(f.Config, m, *b.ephemeral.epoch.Load())
	b.settings.Store(f)
	b.memory = memory.New(int64(f.MemoryBudget), (*histories)(b), m)
	for i := range b.shards {
		b.shards[i].topics = make(map[string]*topic)
	}
	b.log = open(b)
	for range b.log.Partitions() {
		b.partitions = append(b.partitions, newPartition(now, false))
	}
	return b
}

// Reload applies cfg, also to existing topics: messages beyond their new bounds are
// evicted at once. No topic becomes ephemeral, or ceases to be.
func (b *Broker) Reload(cfg Config, now time.Time) {
	b.reloads.Lock()
	defer b.reloads.Unlock()
	f := newSettings(cfg)
	b.settings.Store(f) // first: topics that are created meanwhile use it
	b.memory.SetBudget(int64(f.MemoryBudget))
	b.each(func(t *topic) { t.setRule(f.of(t.name), now) })
	b.keys.reload(f.Config)
}

// each calls do for every topic, under its shard's lock.
func (b *Broker) each(do func(*topic)) {
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.RLock()
		for _, t := range s.topics {
			do(t)
		}
		s.mu.RUnlock()
	}
}

// eachOf calls do for every topic of a partition, under its shard's lock.
func (b *Broker) eachOf(p *partition, do func(*topic)) {
	b.each(func(t *topic) {
		if t.partition == p {
			do(t)
		}
	})
}

// Feed applies the entries of the log, and then new ones, until ctx ends.
func (b *Broker) Feed(ctx context.Context) error {
	return b.log.Feed(ctx, func(e Entry) error {
		_, err := b.Apply(e)
		return err
	})
}

// Close waits for the fan-outs. Nothing may be published any more.
func (b *Broker) Close() { b.fanOuts.Wait() }

// Join subscribes to to the start's topic, which it creates if necessary. A subscription
// that pins keeps the topic from being forgotten. Another one keeps it only until it is
// done with everything. The error is a *wire.Problem: overloaded.
func (b *Broker) Join(start wire.Start, to Subscriber, pins bool) (Joined, error) {
	if err := b.admitSubscription(); err != nil {
		return Joined{}, err
	}
	for {
		t, err := b.topic(start.Topic, nil)
		if err != nil {
			b.countSubscriptions(-1)
			return Joined{}, err
		}
		if joined, ok := t.join(start, to, pins, false); ok {
			return joined, nil
		}
	}
}

// JoinIfThere is Join, without pinning, for a topic that exists; else ok is false. With
// born, the subscription begins at the topic's first message, whatever the start says.
func (b *Broker) JoinIfThere(start wire.Start, born bool, to Subscriber) (j Joined, ok bool, err error) {
	t := b.find(start.Topic)
	if t == nil {
		return Joined{}, false, nil
	}
	if err := b.admitSubscription(); err != nil {
		return Joined{}, false, err
	}
	if j, ok = t.join(start, to, false, born); !ok {
		b.countSubscriptions(-1)
	}
	return j, ok, nil
}

// Birth returns the position before the first message of a topic. It reports false if the topic
// does not exist.
func (b *Broker) Birth(topic string) (at wire.Position, ok bool) {
	t := b.find(topic)
	if t == nil {
		return wire.Position{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.positionLocked(t.born), true
}

// admitSubscription counts one more subscription, or returns why there may be none.
func (b *Broker) admitSubscription() error {
	return b.admit(b.countSubscriptions, b.settings.Load().MaxSubscriptions, "subscriptions", "all_subscriptions")
}

// admit counts one more topic or subscription, of which the limit allows so many. The error
// is a *wire.Problem: overloaded.
func (b *Broker) admit(count func(n int64) int64, most int, what, limit string) error {
	if count(1) > int64(most) {
		count(-1)
		b.metrics.Limited.WithLabelValues(limit).Inc()
		return problem.New(wire.CodeOverloaded, "retry later, or raise limits."+limit,
			"the daemon can hold at most %d %s", most, what).Retry(time.Second)
	}
	err := b.memory.AdmitTopics()
	if err != nil {
		count(-1)
	}
	return err
}

// topic returns the topic of that name. It creates one that does not exist, with a rule
// that was resolved before, or nil.
func (b *Broker) topic(name string, rule *TopicRule) (*topic, error) {
	if t := b.find(name); t != nil {
		return t, nil
	}
	s := b.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[name]; t != nil {
		return t, nil
	}
	if err := b.admit(b.countTopics, b.settings.Load().MaxTopics, "topics", "topics"); err != nil {
		return nil, err
	}
	t := newTopic(b, strings.Clone(name), rule) // a substring would keep a whole request
	s.topics[t.name] = t
	b.names.put(t)
	if t.partition.local {
		b.localTopics.Add(1)
	}
	return t, nil
}

// Memory returns the account of the memory that clients use.
func (b *Broker) Memory() *memory.Account { return b.memory }

// Has reports whether a topic of that name exists.
func (b *Broker) Has(topic string) bool { return b.find(topic) != nil }

// find returns the topic of that name, or nil.
func (b *Broker) find(name string) *topic {
	s := b.shard(name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.topics[name]
}

func (b *Broker) shard(name string) *shard {
	return &b.shards[maphash.String(b.seed, name)%shards]
}

// Sweep evicts expired messages, and forgets topics that hold nothing and have no
// subscriber. It drops idempotency keys whose window has passed. A topic that is created
// again gets offsets above every forgotten one, so positions stay unambiguous.
//
// It also enforces the memory budget: encodings are added without a check.
func (b *Broker) Sweep(now time.Time) {
	b.memory.MakeRoom(0)
	b.keys.sweep(now)
	keeps := now.UnixNano() < b.keepUntil.Load() || b.forgetting.Load() > 0
	for i := range b.shards { // one at a time: there may be a million topics
		s, idle := &b.shards[i], []*topic(nil)
		s.mu.RLock()
		for _, t := range s.topics {
			if t.sweep(now) {
				idle = append(idle, t)
			}
		}
		s.mu.RUnlock()
		if !keeps {
			b.forget(idle, now)
		}
	}
}

// forgetAtOnce is how many topics of a shard one Sweep forgets through a log, so that
// publishes do not wait behind a million entries.
const forgetAtOnce = 500

// forget forgets idle topics. One that is used again stays. The log hears of topics that
// have used an offset.
func (b *Broker) forget(idle []*topic, now time.Time) {
	var logged []Entry
	for _, t := range idle {
		e := Entry{Op: OpForget, Accepted: now, Message: &wire.Message{Position: wire.Position{Topic: t.name}}}
		t.mu.Lock()
		head, idle, unused := t.head, t.isIdleLocked(), t.head == t.born
		t.mu.Unlock()
		switch {
		case !idle:
		case unused:
			_ = b.remove(t.name, func(t *topic) bool { return t.forget(nil) }) // an error means that it is in use, or was forgotten
		case t.partition.local:
			_, _ = b.Apply(e) // likewise
		case len(logged) < forgetAtOnce || !b.AppendWaits():
			e.State = &State{Lost: head}
			logged = append(logged, e)
		}
	}
	if len(logged) > 0 {
		b.forgetting.Add(1)
		b.log.Append(logged, func([]Result) { b.forgetting.Add(-1) })
	}
}

// KeepTopics keeps Sweep from forgetting topics before the given time. Clients that
// reconnect after a restart then find their topics unchanged.
func (b *Broker) KeepTopics(until time.Time) { b.keepUntil.Store(until.UnixNano()) }

// Gauges adds the state of the broker to g.
func (b *Broker) Gauges(g *metrics.Gauges) {
	g.Topics = int(b.topics.Load())
	g.Subscriptions = int(b.subscriptions.Load())
	b.memory.Gauges(g)
	g.IdempotencyKeys = b.keys.count()
}
