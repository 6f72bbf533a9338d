package broker

import (
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Publish adds m to its topic and starts the fan-out. It never waits for a subscriber.
// m.Position needs only its Topic. The caller must not use m afterwards. If ttl is not 0,
// the message expires after it. The error is a *wire.Problem, overloaded, or that of the
// log.
func (b *Broker) Publish(m *wire.Message, ttl time.Duration, now time.Time) (wire.Published, error) {
	return b.PublishBy(Route{}, Key{}, m, ttl, now)
}

// PublishBy is Publish with the topic's route, or an empty one, and with an idempotency key
// that is under way, or an empty one; see Once. If the route is in a Commit, and the publish
// has to wait for the log, the error is ErrPending.
func (b *Broker) PublishBy(r Route, k Key, m *wire.Message, ttl time.Duration, now time.Time) (wire.Published, error) {
	if err := b.memory.Admit(int64(m.Size())); err != nil {
		return wire.Published{}, err
	}
	m.Position = wire.Position{Topic: m.Position.Topic}
	m.Time = now.UnixMilli()
	bytes := len(m.Data) // the log may replace m
	e := Entry{Op: OpPublish, Message: m, TTL: ttl, Accepted: now, Key: k, route: r}
	if r.commit != nil {
		return wire.Published{}, r.commit.add(e, bytes)
	}
	result := b.append(&e)
	b.count(result, bytes)
	return result.Published, result.Err
}

// count counts a publish that has succeeded.
func (b *Broker) count(r Result, bytes int) {
	if r.Err == nil {
		b.metrics.Published.Inc()
		b.metrics.PublishedBytes.Add(float64(bytes))
	}
}

// AppendWaits reports whether a publish waits for the log. Only the in-memory log applies
// an entry at once; others wait for a disk or another machine.
func (b *Broker) AppendWaits() bool {
	_, atOnce := b.log.(memoryLog)
	return !atOnce
}

// append appends an entry to the log, and waits until it is applied.
func (b *Broker) append(e *Entry) Result {
	// Fast path: the in-memory log applies it at once, without allocating a slice, a
	// callback and a channel.
	if log, ok := b.log.(memoryLog); ok {
		return log.append(e)
	}
	if e.Op == OpPublish {
		t, err := b.expect(e)
		if err != nil {
			return Result{Err: err}
		}
		defer t.arrived()
	}
	done := make(chan Result, 1)
	b.log.Append([]Entry{*e}, func(r []Result) { done <- r[0] })
	return <-done
}

// ErrPending says that a publish waits for the log. Its Commit gets the result.
var ErrPending = errors.New("the publish waits for the log")

// A Commit collects publishes that wait for the log, and appends them together. The caller
// does not wait for the results. Only one goroutine may use a Commit. A nil *Commit is valid.
type Commit struct {
	broker  *Broker                                          // immutable
	done    func(n int, published wire.Published, err error) // immutable
	entries []Entry                                          // not yet sent
	parts   []deferred                                       // of the entries
	sent    int                                              // number of publishes that were sent before
}

// A deferred is what a Commit keeps of a publish, because the log may change the entry.
type deferred struct {
	topic *topic
	key   Key
	use   *usedKey // of key; nil: the publish has none
	bytes int      // of the payload
}

// NewCommit returns a Commit, or nil if publishes do not wait for the log. After Send, the
// log calls done with the result of each publish; n counts them from 0. done must not block.
func (b *Broker) NewCommit(done func(n int, published wire.Published, err error)) *Commit {
	if !b.AppendWaits() {
		return nil
	}
	return &Commit{broker: b, done: done}
}

// add adds a publish. The error is ErrPending, or a *wire.Problem: overloaded.
func (c *Commit) add(e Entry, bytes int) error {
	t, err := c.broker.expect(&e)
	if err != nil {
		return err
	}
	part := deferred{topic: t, key: e.Key, bytes: bytes}
	if e.Key != (Key{}) {
		part.use = c.broker.keys.underWay(e.Key.Scope)
	}
	c.entries, c.parts = append(c.entries, e), append(c.parts, part)
	return ErrPending
}

// Send sends the publishes to the log. It must follow each ErrPending.
func (c *Commit) Send() {
	if c == nil || len(c.entries) == 0 {
		return
	}
	b, done, first := c.broker, c.done, c.sent
	entries, parts := c.entries, c.parts
	c.entries, c.parts, c.sent = nil, nil, c.sent+len(entries)
	b.log.Append(entries, func(results []Result) {
		for i, r := range results {
			p := &parts[i]
			p.topic.arrived()
			b.count(r, p.bytes)
			if p.use != nil {
				r.Published, r.Err = b.keys.end(p.use, p.key, r.Published, r.Err)
			}
			done(first+i, r.Published, r.Err)
		}
	})
}

// expect returns the topic of a message before it goes to the log, where the broker can no
// longer refuse it. The topic stays until arrived. The error is a *wire.Problem: overloaded.
func (b *Broker) expect(e *Entry) (*topic, error) {
	for {
		t, err := b.topic(e.Message.Position.Topic, e.route.rule)
		if err != nil {
			return nil, err
		}
		if err := t.expect(); !errors.Is(err, errForgotten) {
			return t, err
		}
	}
}

// expect counts a message that goes to the log, or refuses it if the fan-out lags too far.
func (t *topic) expect() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.forgotten:
		return errForgotten
	case t.lagsLocked(), len(t.subs) > fewSubscribers && t.unsent+t.expected >= t.mostUnsent():
		return t.lags()
	}
	t.expected++
	return nil
}

// arrived undoes expect, once the log has answered.
func (t *topic) arrived() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expected--
}

// Delete deletes the messages of a topic. Every subscriber gets a gap, deleted. Messages
// in the queues of sessions stay. The error is ErrNoTopic, or that of the log.
func (b *Broker) Delete(name string, now time.Time) (wire.TopicState, error) {
	t := b.find(name)
	if t == nil {
		return wire.TopicState{}, ErrNoTopic
	}
	r := b.append(&Entry{Op: OpDelete, Message: &wire.Message{Position: wire.Position{Topic: name}}, Accepted: now})
	return t.state(), r.Err
}
