package broker

import (
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
// that is under way, or an empty one; see Once.
func (b *Broker) PublishBy(r Route, k Key, m *wire.Message, ttl time.Duration, now time.Time) (wire.Published, error) {
	if err := b.memory.Admit(int64(m.Size())); err != nil {
		return wire.Published{}, err
	}
	m.Position = wire.Position{Topic: m.Position.Topic}
	m.Time = now.UnixMilli()
	bytes := float64(len(m.Data)) // the log may replace m
	result := b.append(&Entry{Op: OpPublish, Message: m, TTL: ttl, Accepted: now, Key: k, route: r})
	if result.Err == nil {
		b.metrics.Published.Inc()
		b.metrics.PublishedBytes.Add(bytes)
	}
	return result.Published, result.Err
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
	if e.Op == OpPublish { // the broker cannot refuse an entry that the log has
		t, err := b.topic(e.Message.Position.Topic, e.route.rule)
		if err == nil {
			err = t.expect(e.Accepted)
		}
		if err != nil {
			return Result{Err: err}
		}
	}
	done := make(chan Result, 1)
	b.log.Append([]Entry{*e}, func(r []Result) { done <- r[0] })
	return <-done
}

// expect prepares for a message: it keeps a topic from being forgotten that has none yet. It
// returns an error if the fan-out lags too far.
func (t *topic) expect(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lagsLocked() {
		return t.lags()
	}
	if t.isUnusedLocked() {
		t.keepUntil = now.Add(awayTime)
	}
	return nil
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
