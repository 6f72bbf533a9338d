package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Hook asks the application about messages before they are published.
type Hook interface {
	// Publish asks about m, and returns nil if it may be published. If the application
	// changes the message, Publish calls take, which changes m. The error is a
	// *wire.Problem, or ctx's.
	Publish(ctx context.Context, by hook.Principal, m *wire.Message, ttl time.Duration, take func(*wire.PublishItem) error) error
}

// A Body reads the body of a request, which must have at most the given number of bytes.
// Call it at most once. The error may be a *wire.Problem.
type Body func(most int) ([]byte, error)

// A Publish is a request to publish one message, or many.
type Publish struct {
	Topic, Query                string // the query is raw; many messages name their topics
	ContentType, IdempotencyKey Header

	// Payload is the body; Publish copies it. If Body is not nil, it reads the body
	// instead.
	Payload []byte
	Body    Body

	// Then, unless nil, gets the result of a publish that has to wait for the log. The call
	// does not wait, and its error is ErrPending.
	Then Then
}

// A Then gets the result of a publish. The log calls it, so it must not block.
type Then func(wire.Published, error)

// A Header is the first value of a header, and the number of values. A slice would be an
// allocation for each publish on the lane.
type Header struct {
	Value string
	Count int
}

// HeaderOf returns a header with values, as net/http has them.
func HeaderOf(values []string) Header {
	if len(values) == 0 {
		return Header{}
	}
	return Header{values[0], len(values)}
}

// Publish publishes one message.
func (a *App) Publish(ctx context.Context, c Caller, p Publish) (published wire.Published, err error) {
	defer a.recovered(&err)
	var s slot
	defer s.end()
	w := a.newPending(p.Then)
	defer func() { w.send(&s, err) }()
	to := w.route(a.cfg.Broker.Route(p.Topic))
	key, _ := idOf(p.IdempotencyKey) // messageOf returns the error
	return a.publish(ctx, &c, &s, to, p.Topic, key, func() (*message, []byte, error) {
		m, err := messageOf(p)
		if err != nil || p.Body == nil {
			return m, bytes.Clone(p.Payload), err
		}
		body, err := p.Body(a.Limits().MessageBytes)
		return m, body, err
	})
}

// AppendWaits reports whether publishes wait for the log.
func (a *App) AppendWaits() bool { return a.cfg.Broker.AppendWaits() }

// A pending publish waits for the log, and holds its slot. A nil *pending is valid: the
// publish does not wait for the log, or the call waits with it.
type pending struct {
	slot   slot
	commit *broker.Commit
}

// newPending returns a pending for a publish that may wait for the log, or nil if then is nil.
func (a *App) newPending(then Then) *pending {
	if then == nil {
		return nil
	}
	w := &pending{}
	w.commit = a.cfg.Broker.NewCommit(func(_ int, published wire.Published, err error) {
		w.slot.end()
		w.slot.span.End(published, err)
		then(published, err)
	})
	return w
}

// route returns the route of the publish.
func (w *pending) route(to broker.Route) broker.Route {
	if w == nil {
		return to
	}
	return to.In(w.commit)
}

// send sends the publish to the log. If err, that of the call, is ErrPending, the slot moves
// from the call to w.
func (w *pending) send(s *slot, err error) {
	if w == nil {
		return
	}
	if errors.Is(err, ErrPending) {
		w.slot, *s = *s, slot{}
	}
	w.commit.Send()
}

// publishItem publishes one of many messages, or a message from a two-way connection.
func (a *App) publishItem(ctx context.Context, c *Caller, s *slot, to broker.Route, item *wire.PublishItem) (wire.Published, error) {
	key := ""
	if item.ID != nil {
		key = *item.ID
	}
	return a.publish(ctx, c, s, to, item.Topic, key, func() (*message, []byte, error) { return messageOfItem(item) })
}

// publish checks and publishes a message. It calls read after the checks that need no
// body. The slot may be held already.
func (a *App) publish(ctx context.Context, c *Caller, s *slot, to broker.Route, topic, key string, read func() (*message, []byte, error)) (wire.Published, error) {
	if why := a.cfg.Sessions.Draining(); why != nil {
		return wire.Published{}, why
	}
	mustNotWait := ctx.Err() != nil
	if mustNotWait {
		if err := a.takeEarlyToPublish(c, s, to, topic, key); err != nil {
			return wire.Published{}, err
		}
	}
	if err := a.admit(ctx, c, limit.Publishes); err != nil {
		return wire.Published{}, err
	}
	if err := a.mayPublish(c, to, topic); err != nil {
		return wire.Published{}, err
	}
	m, body, err := read()
	if err != nil {
		return wire.Published{}, err
	}
	pending, err := a.countPending(c, m.session) // a publish that waits for a slot counts
	if err != nil {
		return wire.Published{}, err
	}
	if pending != nil {
		defer pending.Add(-1)
	}
	ctx, s.span = a.cfg.Traces.Publish(ctx, topic)
	var published wire.Published
	if err = s.take(ctx, a, c); err == nil {
		published, err = a.publishMessage(ctx, c, to, m, body)
	}
	if mustNotWait {
		err = orWouldWait(err)
	}
	switch {
	case s.span == nil, errors.Is(err, ErrPending): // the span ends with w
	case errors.Is(err, ErrWouldWait):
		s.span = nil // the call is made again, with another span
	default:
		s.span.End(published, err)
	}
	return published, err
}

// takeEarlyToPublish takes the slot of a publish that must not wait, unless the publish
// would wait for something else.
func (a *App) takeEarlyToPublish(c *Caller, s *slot, to broker.Route, topic, key string) error {
	if to.Rule().Hook || a.AppendWaits() && !to.Defers() {
		return ErrWouldWait
	}
	if key != "" {
		if err := a.recognise(c); errors.Is(err, auth.ErrUnverified) {
			return ErrWouldWait
		} else if err != nil {
			return cmp.Or(a.cfg.Limiter.Admit(limit.Publishes, 1, c.Who, limit.Address), err)
		}
		// If another begins after this check, this publish has spent its rates in vain.
		if a.cfg.Broker.IsUnderWay(c.grant.Subject, topic, key) {
			return ErrWouldWait
		}
	}
	return s.takeEarly(a, c)
}

// mayPublish checks the name, the permission, and the rates of the topic.
func (a *App) mayPublish(c *Caller, to broker.Route, topic string) error {
	if err := a.mayUse(c, auth.Publish, topic); err != nil {
		return err
	}
	if err := a.cfg.Limiter.AdmitTopic(to.Rule().Pattern, c.Who); err != nil {
		return err
	}
	if to.Exists() {
		return nil
	}
	return a.cfg.Limiter.Admit(limit.Topics, 1, c.Who)
}

// countPending adds a publish to those that its session has in flight, if it names a
// session. The caller subtracts it from pending.
func (a *App) countPending(c *Caller, id string) (pending *atomic.Int64, err error) {
	if id == "" {
		return nil, nil
	}
	holder := *c
	s, err := a.sessionToReceive(&holder, limit.Publishes, id)
	if err != nil {
		return nil, err
	}
	if n := s.Pending.Add(1); n > int64(a.cfg.Limiter.Config().PendingMessages) {
		s.Pending.Add(-1)
		return nil, a.cfg.Limiter.TooManyPending(c.Who)
	}
	return &s.Pending, nil
}

// publishMessage publishes m with a body, which it keeps, once for each idempotency key of
// the publisher. It asks the hook first, if the topic has one. It waits for another publish
// with the same key, at most until ctx ends.
func (a *App) publishMessage(ctx context.Context, c *Caller, to broker.Route, m *message, body []byte) (wire.Published, error) {
	if err := m.setPayload(body, a.Limits().MessageBytes); err != nil {
		return wire.Published{}, err
	}
	if m.ID == "" {
		return a.askAndPublish(ctx, c, to, broker.Key{}, m)
	}
	publish := func(k broker.Key) (wire.Published, error) { return a.askAndPublish(ctx, c, to, k, m) }
	await := broker.UntilDone(ctx)
	if to.Rule().Hook {
		await = a.awaitSameKey(ctx)
	}
	return a.cfg.Broker.Once(to.Await(await), c.grant.Subject, &m.Message, m.ttl, time.Now(), publish)
}

// askAndPublish adds the publisher's identity last: neither the request nor the hook's
// answer can state another, and the idempotency key does not stand for it.
func (a *App) askAndPublish(ctx context.Context, c *Caller, to broker.Route, k broker.Key, m *message) (wire.Published, error) {
	if to.Rule().Hook {
		err := a.cfg.Hook.Publish(ctx, principalOf(c), &m.Message, m.ttl, func(item *wire.PublishItem) error {
			return m.become(item, a.Limits().MessageBytes)
		})
		if err != nil {
			return wire.Published{}, err
		}
	}
	by := c.grant
	if err := a.checkGrant(by); err != nil { // the body, the slot and the hook may have taken long
		return wire.Published{}, err
	}
	if to.Rule().Identity && by.Subject != "" {
		m.By, m.Claims = by.Subject, by.Claims
	}
	a.cfg.Traces.Append(ctx)
	return a.cfg.Broker.PublishBy(to, k, &m.Message, m.ttl, time.Now())
}

// awaitSameKey waits for another publish with the same idempotency key, which may wait for
// the hook, and fail. Publishes that wait hold slots that others need, so at most a
// quarter of the slots may.
func (a *App) awaitSameKey(ctx context.Context) broker.Await {
	return func(over <-chan struct{}) error {
		defer a.repeats.Add(-1)
		if most := a.cfg.Limiter.Config().Calls / 4; a.repeats.Add(1) > int64(max(1, most)) {
			a.cfg.Metrics.Limited.WithLabelValues("calls").Inc()
			return problem.New(wire.CodeOverloaded, "retry with the same key after retry_after_ms",
				"a publish with this idempotency key is in progress, and too many retries already wait").Retry(time.Second)
		}
		return broker.UntilDone(ctx)(over)
	}
}
