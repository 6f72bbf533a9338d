package app

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A gatekeeper is an authority that refuses every principal, or every action.
type gatekeeper struct{ knowsNobody, allowsNothing bool }

func (g *gatekeeper) Identify(auth.Credentials) (*auth.Grant, error) {
	if g.knowsNobody {
		return nil, wire.NewProblem(wire.CodeUnauthorized, "", "")
	}
	return &auth.Grant{Subject: "ann"}, nil
}

func (g *gatekeeper) Allow(*auth.Grant, auth.Right, string) error {
	if g.allowsNothing {
		return wire.NewProblem(wire.CodeForbidden, "", "")
	}
	return nil
}

var addr = netip.MustParseAddr("10.0.0.1")

// nothing is a rate that the first call uses up.
var nothing = limit.Rate{PerSecond: 1.0 / 3600, Burst: 1}

// refusingHook refuses every message.
type refusingHook struct{}

func (refusingHook) Publish(context.Context, string, *wire.Message, time.Duration, func(*wire.PublishItem) error) error {
	return wire.NewProblem(wire.CodeHookFailed, "", "")
}

// A publish fails every check. Each step fixes the check that refused it, so that the
// next check refuses it.
func TestAPublishIsCheckedInOneOrder(t *testing.T) {
	g := &gatekeeper{knowsNobody: true, allowsNothing: true}
	m := metrics.New("test")
	rates := limit.Rates{limit.Publishes: {limit.Address: nothing, limit.Principal: nothing}}
	limits := limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Millisecond, Rates: rates, Rules: []limit.Rule{{Name: "r", Pattern: "a", Rate: nothing}}}
	l := limit.New(limits, m)
	a := newApp(t, func(c *Config) {
		c.Authority, c.Limiter, c.Hook = g, l, refusingHook{}
		c.Broker.Reload(broker.Config{HookTopics: []string{">"}, Rules: []broker.Rule{{Name: "r", Pattern: "a"}}}, time.Now())
	})
	from := Caller{Who: l.WhoAt(addr)}
	ann := from.Who.As("ann")
	require.NoError(t, l.Admit(limit.Publishes, ann))
	require.NoError(t, l.AdmitTopic("a", ann))
	held, err := l.Begin(t.Context(), ann)
	require.NoError(t, err)
	a.cfg.Sessions.BeginDrain(wire.NewProblem(wire.CodeDraining, "", ""))

	topic, body := "a..b", "{"
	reload := func(change func(c *limit.Config)) func() {
		return func() { change(&limits); l.Reload(limits) }
	}
	for i, step := range []struct {
		refused string
		mend    func()
	}{
		{"draining", func() { a.cfg.Sessions.BeginDrain(nil) }},
		{"rates.publishes.address", reload(func(c *limit.Config) { c.Rates[limit.Publishes][limit.Address] = limit.Rate{} })},
		{"unauthorized", func() { g.knowsNobody = false; _ = l.Admit(limit.Publishes, ann) }},
		{"rates.publishes.principal", reload(func(c *limit.Config) { c.Rates = limit.Rates{} })},
		{"invalid_topic", func() { topic = "_a" }},
		{"reserved_topic", func() { topic = "a"; _ = l.AdmitTopic("a", ann) }},
		{"forbidden", func() { g.allowsNothing = false }},
		{"topics.r.rate", reload(func(c *limit.Config) { c.Rules = nil })},
		{"limits.calls", held.End},
		{"invalid_body", func() { body = "1" }},
		{"hook_failed", func() {}},
	} {
		_, err := a.Publish(t.Context(), from, Publish{Topic: topic, ContentType: Header{"application/json", 1}, Payload: []byte(body)})
		require.ErrorContains(t, err, step.refused, "check %d", i)
		step.mend()
	}
}

// A call that must not wait returns ErrWouldWait, and spends nothing.
func TestACallThatMustNotWaitSpendsNothing(t *testing.T) {
	m := metrics.New("test")
	var rates limit.Rates
	for _, kind := range limit.Kinds() {
		rates[kind][limit.All] = nothing
	}
	l := limit.New(limit.Config{Calls: 1, Rates: rates}, m)
	a := newApp(t, func(c *Config) {
		c.Limiter = l
		c.Broker.Reload(broker.Config{HookTopics: []string{"asked"}}, time.Now())
	})
	publish := func(topic string) error {
		_, err := a.Publish(NoWait, Caller{}, Publish{Topic: topic, Payload: []byte("1")})
		return err
	}
	poll := func(topic string) error {
		s, _, err := a.PollTopics(NoWait, Caller{}, TopicPoll{Query: "topic=" + topic})
		if err == nil {
			a.End(s)
		}
		return err
	}
	held, err := l.Begin(t.Context(), limit.Who{})
	require.NoError(t, err)
	require.ErrorIs(t, publish("a"), ErrWouldWait, "for a slot")
	held.End()
	require.ErrorIs(t, publish("asked"), ErrWouldWait, "for the hook")
	require.ErrorIs(t, poll("a.*"), ErrWouldWait, "for a search")
	require.NoError(t, publish("a"))
	require.NoError(t, poll("a"))
	require.ErrorContains(t, publish("a"), "rates.publishes.all")
	require.ErrorContains(t, poll("a"), "rates.polls.all")
	held, err = l.Begin(NoWait, limit.Who{})
	require.NoError(t, err, "every slot is free again")
	held.End()
}

// A command that must wait runs later, once.
func TestACommandThatMustWaitRunsLater(t *testing.T) {
	m := metrics.New("test")
	l := limit.New(limit.Config{Calls: 1, Rates: limit.Rates{limit.Publishes: {limit.All: nothing}, limit.Requests: {limit.All: nothing}}}, m)
	a := newApp(t, func(c *Config) { c.Limiter = l })
	d, err := a.Connect(Caller{}, "topic=x", Accepts{})
	require.NoError(t, err)
	defer a.End(d.Session)
	held, err := l.Begin(t.Context(), limit.Who{})
	require.NoError(t, err)
	for _, command := range []string{`{"publish":{"topic":"a","data":1},"ref":1}`, `{"subscribe":["b"],"ref":1}`} {
		reply, later, err := d.Do(t.Context(), d.Session, []byte(command))
		require.NoError(t, err)
		require.Nil(t, reply)
		require.NotNil(t, later, command)
		done := make(chan *wire.Reply)
		go func() { done <- later(t.Context())() }()
		held.End()
		require.Nil(t, (<-done).Problem, "it is the first")
		held, err = l.Begin(t.Context(), limit.Who{})
		require.NoError(t, err)
	}
	held.End()
}

// Errors without an answer close the connection. Internal errors hide their cause.
func TestProblemsOfErrors(t *testing.T) {
	a := newApp(t)
	for _, err := range withoutAnswer {
		require.Nil(t, a.Problem(err), err)
	}
	require.Equal(t, wire.CodeInternal, a.Problem(errKeySyntax).Code)
	require.NotContains(t, a.Problem(errKeySyntax).Detail, "quotes")
	require.Equal(t, wire.CodeForbidden, a.Problem(wire.NewProblem(wire.CodeForbidden, "", "")).Code)
}
