package app

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Hook asks the application about messages before they are published.
type Hook interface {
	// Publish asks about m, and returns nil if it may be published. If the application
	// changes the message, Publish calls take, which changes m. The error is a
	// *wire.Problem, or ctx's.
	Publish(ctx context.Context, by hook.Principal, m *wire.Message, ttl time.Duration, take func(*wire.PublishItem) error) error
}

// A Publish is a publish under way. BeginPublish makes the checks that need no body. Send, once
// the message is there, goes on as far as that needs no waiting. If that is not the end, Continue
// has a goroutine wait for the rest, and the log answers without one. Use it from one goroutine
// at a time.
type Publish struct {
	MostBytes int // of the body, as set when the publish began; see request.Message.SetPayload

	app    *App
	ctx    context.Context // ends waiting
	caller Caller
	to     broker.Route

	// From Send on.
	m       *request.Message
	pending *atomic.Int64 // of its session; nil: it states none
	slot    slot
	claim   broker.Claim    // of the idempotency key
	another <-chan struct{} // closed when another publish with the key is over
	asked   bool            // the hook was asked
	span    *observe.PublishSpan
	waits   wait
	result  broker.Result               // once it is over
	done    func(wire.Published, error) // gets the result
}

// A wait is what a publish waits for.
type wait uint8

const (
	forNothing wait = iota // it is over
	forSlot
	forKey // another publish with the same key
	forHook
	forLog
)

// BeginPublish checks that the caller may publish to a topic. It waits only if the signature of
// the caller's token is to be checked; see Recognise. Later waits end with ctx.
func (a *App) BeginPublish(ctx context.Context, c Caller, topic string) (p Publish, err error) {
	defer a.recovered(&err)
	if why := a.cfg.Sessions.Draining(); why != nil {
		return p, why
	}
	p = Publish{MostBytes: a.limits.Load().MessageBytes, app: a, ctx: ctx, caller: c, to: a.cfg.Broker.Route(topic)}
	if err := a.admit(ctx, &p.caller, limit.Publishes); err != nil {
		return p, err
	}
	if err := a.mayUse(&p.caller, auth.Publish, topic); err != nil {
		return p, err
	}
	if err := a.cfg.Limiter.AdmitTopic(p.to.Rule.Pattern, p.caller.Who); err != nil || p.to.Exists {
		return p, err
	}
	return p, a.cfg.Limiter.Admit(limit.Topics, 1, p.caller.Who)
}

// beginItem is BeginPublish for one of many messages, or for a command. It returns its message, too.
func (a *App) beginItem(ctx context.Context, c Caller, item *wire.PublishItem) (Publish, *request.Message, error) {
	p, err := a.BeginPublish(ctx, c, item.Topic)
	if err != nil {
		return p, nil, err
	}
	m, err := request.MessageOfItem(item, p.MostBytes)
	return p, m, err
}

// Send publishes m, which it keeps, once for each idempotency key of the publisher. It does not
// wait: if it returns false, call Continue.
func (p *Publish) Send(m *request.Message) (published wire.Published, over bool, err error) {
	over = true
	defer p.app.recovered(&err)
	if m.Session != "" { // it counts among those that its session has in flight, also while it waits for a slot
		holder := p.caller
		s, err := p.app.sessionToReceive(&holder, limit.Publishes, m.Session)
		if err != nil {
			return published, over, err
		}
		if n := s.Pending.Add(1); n > int64(p.app.cfg.Limiter.Config().PendingMessages) {
			s.Pending.Add(-1)
			return published, over, p.app.cfg.Limiter.TooManyPending(p.caller.Who)
		}
		p.pending = &s.Pending
	}
	p.m = m
	if traces := p.app.cfg.Traces; traces != nil {
		p.ctx, p.span = traces.Publish(p.ctx, m.Position.Topic)
	}
	p.step()
	if p.waits != forNothing {
		return published, false, nil
	}
	p.release()
	return p.result.Published, true, p.result.Err
}

// Continue calls done with the result of a publish that waits, once: perhaps before it returns,
// on any goroutine, and without a lock. giveUp ends the wait, unless the log has the message.
func (p *Publish) Continue(done func(wire.Published, error)) (giveUp context.CancelFunc) {
	q := *p // only a publish that waits is on the heap
	q.done = done
	if q.waits == forLog {
		q.append()
		return func() {}
	}
	q.ctx, giveUp = context.WithCancel(q.ctx)
	go func() {
		defer giveUp()
		q.finish()
	}()
	return giveUp
}

// Await is Send for a caller that waits.
func (p *Publish) Await(m *request.Message) (wire.Published, error) {
	published, over, err := p.Send(m)
	if over {
		return published, err
	}
	result := make(chan broker.Result, 1)
	p.Continue(func(published wire.Published, err error) { result <- broker.Result{Published: published, Err: err} })
	r := <-result
	return r.Published, r.Err
}

// finish waits, and goes on, until the publish is over or the log has it.
func (p *Publish) finish() {
	for p.waits != forNothing && p.waits != forLog {
		if err := p.wait(); err != nil {
			p.waits, p.result.Err = forNothing, err
		} else {
			p.step()
		}
	}
	if p.waits == forLog {
		p.append()
		return
	}
	p.release()
	p.done(p.result.Published, p.result.Err)
}

// step goes on until the publish has ended, with its result, or waits.
func (p *Publish) step() {
	a, m, r := p.app, p.m, &p.result
	defer a.recovered(&r.Err)
	p.waits = forNothing
	if !p.slot.held {
		if p.slot.call, p.slot.held, r.Err = a.cfg.Limiter.TryBegin(p.caller.Who, true); !p.slot.held {
			if r.Err == nil {
				p.waits = forSlot
			}
			return
		}
	}
	if m.ID != "" && !p.claim.IsHeld() {
		p.claim, *r, p.another = a.cfg.Broker.Claim(p.caller.grant.Subject, &m.Message, m.TTL, time.Now())
		if p.another != nil {
			p.waits = forKey
		}
		if !p.claim.IsHeld() { // there is another publish with the key, or its result
			return
		}
	}
	if p.to.Rule.Hook && !p.asked {
		p.waits = forHook
		return
	}
	by := p.caller.grant
	if r.Err = cmp.Or(a.checkGrant(by), a.checkForbidden(by, m.Position.Topic)); r.Err != nil { // the body, the slot and the hook may have taken long
		return
	}
	// Neither the request nor the hook's answer can state another identity, and the
	// idempotency key does not stand for it.
	if p.to.Rule.Identity && by.Subject != "" {
		m.By, m.Claims = by.Subject, by.Claims
	}
	if p.span != nil {
		p.span.Append(p.ctx)
	}
	if p.to.Waits {
		p.waits = forLog
		return
	}
	*r, _ = a.cfg.Broker.Send(p.to, p.claim, &m.Message, m.TTL, time.Now(), nil)
}

// append gives the message to the log, which ends the publish.
func (p *Publish) append() {
	end := func(r broker.Result) {
		p.result = r
		p.release()
		p.done(r.Published, r.Err)
	}
	if r, over := p.app.cfg.Broker.Send(p.to, p.claim, &p.m.Message, p.m.TTL, time.Now(), end); over {
		end(r)
	}
}

// release gives back what the publish holds.
func (p *Publish) release() {
	p.app.cfg.Broker.Release(p.claim)
	p.slot.end()
	if p.pending != nil {
		p.pending.Add(-1)
	}
	if p.span != nil {
		p.span.End(p.result.Published, p.result.Err)
	}
}

// wait waits for what the publish waits for.
func (p *Publish) wait() (err error) {
	a, m := p.app, p.m
	defer a.recovered(&err)
	switch p.waits {
	case forSlot:
		return p.slot.take(p.ctx, a, &p.caller)
	case forHook:
		p.asked = true
		return a.cfg.Hook.Publish(p.ctx, principalOf(&p.caller), &m.Message, m.TTL, func(item *wire.PublishItem) error {
			return m.Become(item, p.MostBytes)
		})
	}
	// Another publish with the key. It may wait for the hook, and fail. Publishes that wait for it
	// hold slots that others need, so at most a quarter of the slots may.
	if p.to.Rule.Hook {
		defer a.repeats.Add(-1)
		if most := a.cfg.Limiter.Config().Calls / 4; a.repeats.Add(1) > int64(max(1, most)) {
			a.cfg.Metrics.Limited.WithLabelValues("calls").Inc()
			return problem.New(wire.CodeOverloaded, "retry with the same key after retry_after_ms",
				"a publish with this idempotency key is in progress, and too many retries already wait").Retry(time.Second)
		}
	}
	select {
	case <-p.another:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}
