package app

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// newApp returns an App that allows everything. how changes its Config.
func newApp(t *testing.T, how ...func(*Config)) *App {
	m := metrics.New("test")
	b := broker.New(broker.Config{}, m, time.Now())
	t.Cleanup(b.Close)
	cfg := Config{
		Broker: b, Sessions: session.NewRegistry(session.Config{}, b, m), Authority: auth.Open{},
		Limiter: limit.New(limit.Config{}, m), Hook: hook.NewPublishes(hook.Config{}, nil, m, zap.NewNop()), Authorize: hook.NewSubscriptions(hook.AuthorizeConfig{}, nil, m, zap.NewNop()), Metrics: m, Log: zap.NewNop(),
		Limits: wire.Limits{MessageBytes: 64 << 10},
	}
	for _, change := range how {
		change(&cfg)
	}
	return New(cfg)
}

// permitting is an authority that gives every caller the same grant.
type permitting struct {
	auth.Open
	*auth.Grant
}

// permit returns a permitting authority with rights, as in a token's claim.
func permit(t *testing.T, subject, rights string) permitting {
	parsed, err := auth.ParseRights([]byte(rights), subject)
	require.NoError(t, err)
	return permitting{Grant: &auth.Grant{Subject: subject, Rights: parsed}}
}

func (p permitting) Identify(auth.Credentials, bool) (*auth.Grant, error) { return p.Grant, nil }

// A posting is a publish over HTTP.
type posting struct {
	Topic, Query                string
	ContentType, IdempotencyKey request.Header
	Payload                     []byte
	Body                        Body // instead of Payload, unless it is nil
}

func (p posting) head() request.Head {
	return request.Head{Topic: p.Topic, Query: p.Query, ContentType: p.ContentType, IdempotencyKey: p.IdempotencyKey}
}

// begin begins a publish, and returns its message.
func (a *App) begin(ctx context.Context, c Caller, p posting) (begun Publish, m *request.Message, err error) {
	if begun, err = a.BeginPublish(ctx, c, p.Topic); err != nil {
		return begun, nil, err
	}
	if m, err = request.MessageOf(p.head()); err != nil {
		return begun, nil, err
	}
	body := p.Payload
	if p.Body != nil {
		if body, err = p.Body(a.Limits().MessageBytes); err != nil {
			return begun, nil, err
		}
	}
	return begun, m, m.SetPayload(body, a.Limits().MessageBytes)
}

// post publishes, and waits for the result.
func (a *App) post(ctx context.Context, c Caller, p posting) (wire.Published, error) {
	begun, m, err := a.begin(ctx, c, p)
	if err != nil {
		return wire.Published{}, err
	}
	return begun.Await(m)
}

// A Body is the body of a request, once it has arrived.
type Body func(most int) ([]byte, error)

// What follows is what the handlers do.

func (a *App) publishMany(ctx context.Context, c Caller, h request.Head, read Body) ([]byte, error) {
	m, err := a.BeginPublishMany(ctx, c)
	if err != nil {
		return nil, err
	}
	form, err := request.ManyFormOf(h)
	if err != nil {
		return nil, err
	}
	body, err := read(a.MostBytes())
	if err != nil {
		return nil, err
	}
	results, err := m.Send(form, body)
	if err != nil {
		return nil, err
	}
	var answer []byte
	for part := range form.Answer(results) {
		answer = append(answer, part...)
	}
	return answer, nil
}

func (a *App) openSession(ctx context.Context, c Caller, read Body) (opened wire.SessionOpened, err error) {
	o, err := a.BeginOpen(ctx, c, limit.Sessions, OfBody)
	if err != nil {
		return opened, err
	}
	body, err := read(a.MostBytes())
	if err != nil {
		return opened, err
	}
	var asked session.Opening
	if err := o.Decode(len(body), func() (err error) { asked, err = request.OpeningOf(body, a.MostNamed()); return err }); err != nil {
		return opened, err
	}
	return o.Session(asked)
}

func (a *App) changeSession(ctx context.Context, c Caller, id string, read Body) error {
	change, err := a.BeginChange(ctx, c, id)
	if err != nil {
		return err
	}
	body, err := read(a.MostBytes())
	if err != nil {
		return err
	}
	var asked wire.ChangeRequest
	if err := change.Decode(len(body), func() (err error) { asked, err = request.ChangeOf(body, a.MostNamed()); return err }); err != nil {
		return err
	}
	_, err = change.Make(asked)
	return err
}

func (a *App) pollTopics(ctx context.Context, c Caller, query string, read Body) error {
	var p request.TopicPoll
	on := OfBody
	if read == nil {
		p, on = request.TopicPollOf(query, request.Accepts{}, &c.Credentials), OfQuery
	}
	o, err := a.BeginOpen(ctx, c, limit.Polls, on)
	if err != nil {
		return err
	}
	if on == OfBody {
		body, err := read(a.MostBytes())
		if err != nil {
			return err
		}
		err = o.Decode(len(body), func() error { p = request.TopicPollInBody(query, request.Accepts{}, body, a.MostNamed()); return nil })
		if err != nil {
			return err
		}
	}
	_, _, err = o.Poll(p)
	return err
}

func (a *App) openEvents(ctx context.Context, c Caller, query string) (*session.Session, error) {
	e := request.EventsOf(query, nil, &c.Credentials)
	o, err := a.BeginOpen(ctx, c, limit.Polls, OnTopics(e.Session))
	if err != nil {
		return nil, err
	}
	s, _, err := o.Events(e)
	return s, err
}

func (a *App) connect(ctx context.Context, c Caller, query string) (d transport.Duplex, err error) {
	asked := request.ConnectOf(query, request.Accepts{}, &c.Credentials)
	o, err := a.BeginOpen(ctx, c, limit.Sessions, OnTopics(asked.Session))
	if err != nil {
		return d, err
	}
	return o.Connect(asked, "websocket")
}

func (a *App) connectByItem(ctx context.Context, c Caller, item []byte) error {
	asked := request.ConnectInItem(item, &c.Credentials)
	o, err := a.BeginOpen(ctx, c, limit.Sessions, OnTopics(asked.Session))
	if err == nil && asked.Fault == nil {
		err = o.Decode(len(item), func() error { return asked.Complete(item, a.MostNamed()) })
	}
	if err == nil {
		_, err = o.Connect(asked, "tcp")
	}
	return err
}
