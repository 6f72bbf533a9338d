// Package broker orders messages by topic, retains the recent ones, and fans
// them out to whoever subscribed.
//
// Locks are taken in this order and released before any call out of the package:
// that of memory.Account, held while room is made, a shard's, a topic's, a frame's. Those of
// the names, of what was forgotten and of the follows come last, one at a time. A
// Subscriber's own lock is taken before all of them (a session that catches up reads
// the history under its lock), never inside one: the fan-out offers, and followers
// are told, without holding anything.
package broker

import (
	"context"
	"errors"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Subscriber is offered a topic's messages as they are published.
type Subscriber interface {
	// Offer hands over messages in offset order. It must not block and must not
	// call back into the broker. Only one Offer runs at a time for one
	// subscription. The subscriber must not keep the slice. now is about when.
	Offer(frames []*frame.Frame, now time.Time)

	// Emptied says that the history was emptied, and that there is a gap to be read
	// from it. It comes in order with the offers, and has the same duties.
	Emptied()

	// Forgotten says that the topic was forgotten: the subscription, which did not pin
	// it, is gone.
	Forgotten()
}

// shards is how many parts the topic map has: enough that two cores seldom want
// the same one, few enough that a sweep is short.
const shards = 64

// A Broker is the daemon's topics. All methods may be called concurrently.
//
// Publish stores a message and returns; fan-outs run in goroutines of the
// broker's own, at most one per topic, alive while there is something to hand
// over. With several daemons Publish will end at a Bus and its second half will
// be what the Bus calls on every node.
type Broker struct {
	force   atomic.Pointer[force] // what is in force
	metrics *metrics.Metrics
	seed    maphash.Seed
	shards  [shards]shard
	follows follows
	names   names
	reloads sync.Mutex // held by a reload

	keepUntil     atomic.Int64 // Unix nanoseconds; see KeepTopics
	topics        atomic.Int64 // how many there are
	subscriptions atomic.Int64
	memory        *memory.Account // immutable

	log        Log            // immutable
	partitions []*partition   // immutable
	keys       *keys          // immutable
	fanOuts    sync.WaitGroup // one for each running fan-out
}

type shard struct {
	mu     sync.RWMutex
	topics map[string]*topic
}

// New returns an empty broker on the in-memory log, whose epoch begins at now. It needs
// Sweep about each second, and Close at the end.
func New(cfg Config, m *metrics.Metrics, now time.Time) *Broker {
	return NewWithLog(cfg, m, now, func(b *Broker) Log { return memoryLog{b} })
}

// NewWithLog is New with another log, which open makes for the broker. It needs Feed.
func NewWithLog(cfg Config, m *metrics.Metrics, now time.Time, open func(*Broker) Log) *Broker {
	b := &Broker{
		metrics: m,
		seed:    maphash.MakeSeed(),
	}
	b.force.Store(newForce(cfg))
	b.memory = memory.New(int64(b.force.Load().MemoryBudget), (*histories)(b), m)
	b.keys = newKeys(b.force.Load().Config, m)
	for i := range b.shards {
		b.shards[i].topics = make(map[string]*topic)
	}
	b.log = open(b)
	for range b.log.Partitions() {
		b.partitions = append(b.partitions, newPartition(now))
	}
	return b
}

// A force is the settings in force.
type force struct {
	Config
	rules *rules
}

func newForce(cfg Config) *force {
	cfg = cfg.withDefaults()
	return &force{Config: cfg, rules: newRules(cfg)}
}

// Reload puts cfg in force, also for the topics that there are: what they hold
// beyond it goes at once.
func (b *Broker) Reload(cfg Config, now time.Time) {
	b.reloads.Lock()
	defer b.reloads.Unlock()
	f := newForce(cfg)
	b.force.Store(f) // before looking: a topic made meanwhile goes by it
	b.memory.SetBudget(int64(f.MemoryBudget))
	b.each(func(t *topic) { t.setRule(f.rules.of(t.name), now) })
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

// Feed applies what the log has, and then what it gets, until ctx ends.
func (b *Broker) Feed(ctx context.Context) error {
	return b.log.Feed(ctx, func(e Entry) error {
		_, err := b.Apply(e, nil)
		return err
	})
}

// Close waits until every fan-out has handed over what was published. Nothing may
// be published any more.
func (b *Broker) Close() { b.fanOuts.Wait() }

// Join makes to a subscriber of the start's topic. A subscription that pins keeps
// the topic from being forgotten; another does only until it has Settled all of it.
// The error is a *wire.Problem: overloaded.
func (b *Broker) Join(start wire.Start, to Subscriber, pins bool) (Joined, error) {
	return b.joinCounted(func() (Joined, error) { return b.join(start, to, pins) })
}

// JoinIfThere is Join, without pinning, for a topic that there is; else ok is false.
// With born, the subscription begins where the topic did, whatever the start says.
func (b *Broker) JoinIfThere(start wire.Start, born bool, to Subscriber) (j Joined, ok bool, err error) {
	j, err = b.joinCounted(func() (Joined, error) {
		t := b.find(start.Topic)
		if t == nil {
			return Joined{}, errForgotten
		}
		return t.join(start, to, false, born)
	})
	if errors.Is(err, errForgotten) {
		return Joined{}, false, nil
	}
	return j, err == nil, err
}

// joinCounted joins if there is room for one more subscription.
func (b *Broker) joinCounted(join func() (Joined, error)) (Joined, error) {
	if most := b.force.Load().MaxSubscriptions; b.countSubscriptions(1) > int64(most) {
		b.countSubscriptions(-1)
		return Joined{}, b.full(most, "subscriptions", "all_subscriptions")
	}
	err := b.memory.AdmitTopics()
	var joined Joined
	if err == nil {
		joined, err = join()
	}
	if err != nil {
		b.countSubscriptions(-1)
	}
	return joined, err
}

func (b *Broker) join(start wire.Start, to Subscriber, pins bool) (Joined, error) {
	for {
		t, err := b.topic(start.Topic)
		if err != nil {
			return Joined{}, err
		}
		joined, err := t.join(start, to, pins, false)
		if !errors.Is(err, errForgotten) {
			return joined, err
		}
	}
}

// full is the problem that the broker holds as many of something as it may, counted.
func (b *Broker) full(n int, what, limit string) *wire.Problem {
	b.metrics.Limited.WithLabelValues(limit).Inc()
	return wire.NewProblem(wire.CodeOverloaded, "retry later, or raise limits."+limit,
		"the daemon holds %d %s, as many as it may", n, what).Retry(time.Second)
}

// topic finds the topic of that name in its shard, or makes it.
func (b *Broker) topic(name string) (*topic, error) { return b.topicWith(name, nil) }

// topicWith is topic, with the rule that was resolved on the way, or nil.
func (b *Broker) topicWith(name string, rule *TopicRule) (*topic, error) {
	s := b.shard(name)
	s.mu.RLock()
	t := s.topics[name]
	s.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	return b.makeTopic(s, name, rule)
}

func (b *Broker) makeTopic(s *shard, name string, rule *TopicRule) (*topic, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[name]; t != nil {
		return t, nil
	}
	if most := b.force.Load().MaxTopics; b.countTopics(1) > int64(most) {
		b.countTopics(-1)
		return nil, b.full(most, "topics", "topics")
	}
	if err := b.memory.AdmitTopics(); err != nil {
		b.countTopics(-1)
		return nil, err
	}
	t := newTopic(b, strings.Clone(name), rule) // a substring would keep a whole request
	s.topics[t.name] = t
	b.names.put(t.name)
	return t, nil
}

// Memory returns the account of the memory that clients take.
func (b *Broker) Memory() *memory.Account { return b.memory }

// Has reports whether there is a topic of that name.
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

// Sweep lets go of messages whose age is over and forgets topics that hold
// nothing and have no subscriber. A topic that is made again numbers on above
// every offset ever forgotten, so no position becomes ambiguous. Idempotency keys
// go whose window has passed.
//
// It also holds the memory budget: encodings are made without asking.
func (b *Broker) Sweep(now time.Time) {
	b.memory.MakeRoom(0)
	b.keys.sweep(now)
	keeps := now.UnixNano() < b.keepUntil.Load()
	for i := range b.shards { // few at a time: there may be a million
		idle := b.shards[i].sweep(now)
		if len(idle) > 0 && !keeps {
			b.log.Append(idle, func([]Result) {}) // in use again, or known to be forgotten
		}
	}
}

// sweep trims the topics, and returns entries that forget those that are idle.
func (s *shard) sweep(now time.Time) (idle []Entry) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range s.topics {
		if t.sweep(now) {
			idle = append(idle, Entry{Op: OpForget, Accepted: now, Message: &wire.Message{Position: wire.Position{Topic: t.name}}})
		}
	}
	return idle
}

// KeepTopics has Sweep forget no topic before the given time: whoever is away
// until then, because daemons take turns, finds its topics as it left them.
func (b *Broker) KeepTopics(until time.Time) { b.keepUntil.Store(until.UnixNano()) }

// Gauges adds the broker's part to g.
func (b *Broker) Gauges(g *metrics.Gauges) {
	g.Topics = int(b.topics.Load())
	g.Subscriptions = int(b.subscriptions.Load())
	b.memory.Gauges(g)
	g.IdempotencyKeys = b.keys.count()
}
