package broker

import (
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Route has the topic of a publish, which may not exist yet, and its rule. So the rule is
// resolved once, and all checks of the publish use it. Use a Route for one publish only.
type Route struct {
	Rule   *TopicRule // of the topic when the route was made
	Exists bool       // the topic exists
	Waits  bool       // the publish waits for the log; see AppendWaits

	topic *topic // nil: it does not
}

// Route returns the route to a topic.
func (b *Broker) Route(topic string) Route {
	if t := b.find(topic); t != nil {
		return Route{t.rule.Load(), true, b.AppendWaits() && !t.partition.local, t}
	}
	return Route{Rule: b.settings.Load().of(topic), Waits: b.AppendWaits() && !b.IsEphemeral(topic)}
}

// A Claim makes an idempotency key the caller's, until the publish with it ends: in Broker.Send,
// or in Release. Publishes with the same key wait meanwhile. The zero Claim has no key.
type Claim struct {
	key  Key
	used *usedKey
}

// IsHeld reports whether the claim has a key.
func (c Claim) IsHeld() bool { return c.used != nil }

// Claim claims the key m.ID of an owner for a publish. The caller may change m and ttl afterwards:
// the key stands for them as they are. If a message with that key was published to the topic
// within the window, Claim returns the earlier result instead, or the *wire.Problem
// idempotency_mismatch. If another publish with the key is under way, Claim returns a channel
// that is closed when that is over. Then call it again. It never waits.
func (b *Broker) Claim(owner string, m *wire.Message, ttl time.Duration, now time.Time) (c Claim, earlier Result, underWay <-chan struct{}) {
	return b.keys.claim(keyOf(owner, m, ttl), now)
}

// Release ends a claim whose publish was not sent: the key is free. It may be called again.
func (b *Broker) Release(c Claim) {
	if c.used != nil {
		b.keys.end(c, Result{Err: errReleased})
	}
}

// Publish adds m to its topic and starts the fan-out. It never waits for a subscriber.
// m.Position needs only its Topic. The caller must not use m afterwards. If ttl is not 0,
// the message expires after it. The error is a *wire.Problem, overloaded, or that of the
// log, for which Publish waits.
func (b *Broker) Publish(m *wire.Message, ttl time.Duration, now time.Time) (wire.Published, error) {
	late := make(chan Result, 1)
	r, over := b.Send(Route{}, Claim{}, m, ttl, now, func(r Result) { late <- r })
	if !over {
		r = <-late
	}
	return r.Published, r.Err
}

// Send is Publish with the topic's route and the claim of an idempotency key, which may both be
// empty. It never waits, and ends the claim. If the result is there at once, it returns true.
// Otherwise the log calls then with it, once: perhaps before Send returns, and on any
// goroutine. then must not block. Unless the route says that the publish waits, it may be nil.
func (b *Broker) Send(to Route, c Claim, m *wire.Message, ttl time.Duration, now time.Time, then func(Result)) (Result, bool) {
	if err := b.memory.Admit(int64(m.Size())); err != nil {
		return b.end(c, Result{Err: err}, 0), true
	}
	if to.Rule == nil { // no route: a log that keeps entries must not keep its topic
		to.Waits = b.Route(m.Position.Topic).Waits
	}
	m.Position = wire.Position{Topic: m.Position.Topic}
	m.Time = now.UnixMilli()
	bytes := len(m.Data) // the log may replace m
	e := Entry{Op: OpPublish, Message: m, TTL: ttl, Accepted: now, Key: c.key, route: to}
	// Fast path: it is applied at once, without allocating a slice and a callback, if the log is in
	// memory or the topic ephemeral.
	if !to.Waits {
		at, err := b.applyPublish(&e, now)
		return b.end(c, Result{wire.Published{Position: at, Time: m.Time}, err}, bytes), true
	}
	t, err := b.expect(&e)
	if err != nil {
		return b.end(c, Result{Err: err}, 0), true
	}
	b.log.Append([]Entry{e}, func(r []Result) {
		t.mu.Lock()
		t.expected--
		t.mu.Unlock()
		then(b.end(c, r[0], bytes))
	})
	return Result{}, false
}

// end counts a publish that has succeeded, and ends its claim.
func (b *Broker) end(c Claim, r Result, bytes int) Result {
	if r.Err == nil {
		b.metrics.Published.Inc()
		b.metrics.PublishedBytes.Add(float64(bytes))
	}
	if c.used != nil {
		return b.keys.end(c, r)
	}
	return r
}

func (b *Broker) applyPublish(e *Entry, now time.Time) (wire.Position, error) {
	at, short := &e.Message.Position, false
	numbered := at.Offset > 0
	if numbered {
		if b.isPast(*at) {
			return *at, nil
		}
		short = b.memory.Admit(int64(e.Message.Size())) != nil
	}
	for t := e.route.topic; ; t = nil {
		var err error
		if t == nil {
			t, err = b.topic(at.Topic, e.route.Rule)
		}
		switch {
		case err != nil && numbered:
			b.partitionOf(at.Topic).forget(at.Topic, at.Offset, at.Offset)
			return *at, nil
		case err != nil:
			return wire.Position{}, err
		}
		b.announce(t)
		few, direct, err := t.publish(e, short, now)
		switch {
		case errors.Is(err, errForgotten):
			continue
		case err != nil && !errors.Is(err, errKnown): // of a known message, the key may be unknown
			return wire.Position{}, err
		case few:
			// Messages that are published meanwhile are left to a goroutine of the broker, so that
			// the publisher returns.
			if t.offerNext(direct) {
				b.fanOuts.Go(t.fanOut)
			}
		}
		if e.Key != (Key{}) {
			b.keys.applied(e.Key, wire.Published{Position: *at, Time: e.Message.Time}, now)
		}
		return *at, nil
	}
}

// AppendWaits reports whether a publish waits for the log, unless its topic is ephemeral. Only
// the in-memory log applies an entry at once; others wait for a disk or another machine.
func (b *Broker) AppendWaits() bool {
	_, atOnce := b.log.(memoryLog)
	return !atOnce
}

// expect returns the topic of a message before it goes to the log, where the broker can no
// longer refuse it, and counts the message until the log has answered: so long the topic stays.
// The error is a *wire.Problem, overloaded: also if the fan-out lags too far.
func (b *Broker) expect(e *Entry) (*topic, error) {
	for {
		t, err := b.topic(e.Message.Position.Topic, e.route.Rule)
		if err != nil {
			return nil, err
		}
		t.mu.Lock()
		coming := 0 // few subscribers get each message from the goroutine that applies it
		if len(t.subs) > fewSubscribers {
			coming = t.expected
		}
		forgotten, lags := t.forgotten, t.lagsLocked(coming)
		if !forgotten && !lags {
			t.expected++
		}
		t.mu.Unlock()
		switch {
		case !forgotten && !lags:
			return t, nil
		case !forgotten:
			return nil, t.lags()
		}
	}
}

// Delete deletes the messages of a topic. Every subscriber gets a gap, deleted. Messages
// in the queues of sessions stay. The error is ErrNoTopic, or that of the log.
func (b *Broker) Delete(name string, now time.Time) (wire.TopicState, error) {
	t := b.find(name)
	if t == nil {
		return wire.TopicState{}, ErrNoTopic
	}
	e := Entry{Op: OpDelete, Message: &wire.Message{Position: wire.Position{Topic: name}}, Accepted: now}
	if t.partition.local {
		_, err := b.Apply(e)
		return t.state(), err
	}
	done := make(chan error, 1)
	b.log.Append([]Entry{e}, func(r []Result) { done <- r[0].Err })
	err := <-done
	return t.state(), err
}
