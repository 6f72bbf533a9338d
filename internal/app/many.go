package app

import (
	"context"
	"errors"
	"net/http"
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
//
// After a message that its client may retry, later ones of its topic are refused, too: if they were
// published, the retry would come behind them.
type ManyPublish struct {
	app     *App
	ctx     context.Context // the request's
	caller  Caller
	slot    slot
	asked   bool // the slot was used for a message with a hook
	results []broker.Result
	waiting sync.WaitGroup // for the log

	mu      sync.Mutex     // guards retried, and results while the log may set them
	retried map[string]int // index of the first message that may be retried, by topic
}

// A followError refuses a message with the problem of an earlier one.
type followError struct {
	earlier int
	own     error // why the message would have been refused anyway, or nil
}

func (e followError) Error() string { return "an earlier message of the topic was refused" }

func (e followError) Unwrap() error { return e.own }

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
		if err := m.publish(form, raw, i); err != nil {
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
		if follow, ok := errors.AsType[followError](r.Err); ok {
			results[i].Problem = results[follow.earlier].Problem
			continue
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

// publish publishes message i. The log may set the result later. An error means that the client has left.
func (m *ManyPublish) publish(form *request.ManyForm, raw []byte, i int) error {
	item, err := form.Item(raw)
	if err != nil {
		m.end(i, "", broker.Result{Err: err})
		return nil
	}
	topic := item.Topic
	p, message, err := m.app.beginItem(m.ctx, m.caller, item) // also counts messages that are refused in any case
	if earlier, ok := m.firstRetried(topic); ok {
		err = followError{earlier, err}
	}
	if err != nil {
		m.end(i, topic, broker.Result{Err: err})
		return nil
	}
	if p.to.Rule.Hook {
		if m.asked {
			m.slot.end()
		}
		m.asked = true
	}
	if err := m.slot.take(m.ctx, m.app, &m.caller); err != nil { // of those after a wait in vain, none waits
		m.end(i, topic, broker.Result{Err: err})
		return m.ctx.Err()
	}
	p.slot.held = true // it is m.slot
	if published, over, err := p.Send(message); over {
		m.end(i, topic, broker.Result{Published: published, Err: err})
		return nil
	}
	m.waiting.Add(1)
	p.done = func(published wire.Published, err error) {
		m.end(i, topic, broker.Result{Published: published, Err: err})
		m.waiting.Done()
	}
	p.finish() // the next message follows it
	return m.ctx.Err()
}

// end sets the result of message i, and notes whether its client may retry it.
func (m *ManyPublish) end(i int, topic string, r broker.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.results[i] = r
	p, ok := errors.AsType[*wire.Problem](r.Err)
	if !ok || p.Status != http.StatusTooManyRequests && p.Status != http.StatusServiceUnavailable {
		return
	}
	if earlier, ok := m.retried[topic]; ok && earlier < i {
		return
	}
	if m.retried == nil {
		m.retried = make(map[string]int)
	}
	m.retried[topic] = i
}

// firstRetried returns the index of the first message of a topic that its client may retry.
func (m *ManyPublish) firstRetried(topic string) (i int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok = m.retried[topic]
	return i, ok
}
