package app

import (
	"context"
	"errors"
	"sync"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A ManyPublish publishes the messages of one request, one after the other. They share a
// slot. The hook may take long for each message, so the request gives its slot to other
// calls before the next message with a hook. The messages wait for the log together.
type ManyPublish struct {
	app     *App
	ctx     context.Context // the request's
	caller  Caller
	slot    slot
	asked   bool // the slot was used for a message with a hook
	results []broker.Result
	waiting sync.WaitGroup // for the log
}

// BeginPublishMany checks, before the body arrives, that the caller may publish to some topic.
func (a *App) BeginPublishMany(ctx context.Context, c Caller) (m *ManyPublish, err error) {
	defer a.recovered(&err)
	if why := a.cfg.Sessions.Draining(); why != nil {
		return nil, why
	}
	if err := a.admit(ctx, &c, limit.Requests); err != nil {
		return nil, err
	}
	return &ManyPublish{app: a, ctx: ctx, caller: c}, c.grant.AllowSome(auth.Publish)
}

// Send publishes the messages in a body in order, each like Publish, and returns a result for
// each. An error refuses the whole request. A delayed refusal of one message delays the results.
func (m *ManyPublish) Send(form *request.ManyForm, body []byte) (results []wire.PublishResult, err error) {
	a := m.app
	var span *observe.PublishSpan
	defer func() {
		if span != nil {
			span.End(wire.Published{}, err)
		}
	}()
	defer a.recovered(&err)
	var items [][]byte
	err = a.inTurn(m.ctx, &m.caller, len(body) > request.LargeBody, func() (err error) { items, err = form.Split(body); return err })
	if err != nil {
		return nil, err
	}
	if a.cfg.Traces != nil {
		m.ctx, span = a.cfg.Traces.PublishMany(m.ctx)
	}
	m.results = make([]broker.Result, len(items))
	defer m.slot.end()
	if err := m.slot.take(m.ctx, a, &m.caller); err != nil {
		return nil, err
	}
	for i, raw := range items {
		if err := m.publish(form, raw, &m.results[i]); err != nil {
			return nil, err
		}
	}
	m.waiting.Wait()
	m.slot.end()
	results = make([]wire.PublishResult, len(items))
	var late *limit.Refusal
	for i, r := range m.results {
		if r.Err == nil {
			results[i].Published = &r.Published
			continue
		}
		if refusal, ok := errors.AsType[*limit.Refusal](r.Err); ok && refusal.Hold > 0 {
			late = refusal
		}
		if results[i].Problem = a.Problem(r.Err); results[i].Problem == nil {
			return nil, r.Err // the client has left
		}
	}
	if late != nil {
		a.cfg.Limiter.Hold(m.ctx, late) // the client gets the results in any case
	}
	return results, nil
}

// publish publishes a message. The log may set the result later. An error means that the client has left.
func (m *ManyPublish) publish(form *request.ManyForm, raw []byte, result *broker.Result) error {
	var p Publish
	var message *request.Message
	item, err := form.Item(raw)
	if err == nil {
		p, message, err = m.app.beginItem(m.ctx, m.caller, item)
	}
	if err != nil {
		result.Err = err
		return nil
	}
	if p.to.Rule.Hook {
		if m.asked {
			m.slot.end()
		}
		m.asked = true
	}
	if err := m.slot.take(m.ctx, m.app, &m.caller); err != nil { // of those after a wait in vain, none waits
		result.Err = err
		return m.ctx.Err()
	}
	p.slot.held = true // it is m.slot
	var over bool
	if result.Published, over, result.Err = p.Send(message); over {
		return nil
	}
	m.waiting.Add(1)
	p.done = func(published wire.Published, err error) {
		result.Published, result.Err = published, err
		m.waiting.Done()
	}
	p.finish() // the next message follows it
	return m.ctx.Err()
}
