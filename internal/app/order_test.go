package app

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/presence"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A gatekeeper is an authority that refuses every principal, or every action on the topics of the tests.
type gatekeeper struct {
	auth.Open
	knowsNobody, allowsLittle, unverified bool
}

func (g *gatekeeper) Identify(auth.Credentials, bool) (*auth.Grant, error) {
	if g.unverified {
		return nil, auth.ErrUnverified
	}
	if g.knowsNobody {
		return nil, problem.New(wire.CodeUnauthorized, "", "")
	}
	rights, err := auth.Everything, error(nil)
	if g.allowsLittle {
		rights, err = auth.ParseRights([]byte(`[{"topics":["other"],"allow":["subscribe","publish"]}]`), "")
	}
	return &auth.Grant{Subject: "ann", Rights: rights}, err
}

var addr = netip.MustParseAddr("10.0.0.1")

// nothing is a rate that the first call uses up.
var nothing = limit.Rate{PerSecond: 1.0 / 3600, Burst: 1}

// refusingHook refuses every message.
type refusingHook struct{}

func (refusingHook) Publish(context.Context, hook.Principal, *wire.Message, time.Duration, func(*wire.PublishItem) error) error {
	return problem.New(wire.CodeHookFailed, "", "")
}

// A publish fails every check. Each step fixes the check that refused it, so that the
// next check refuses it.
func TestAPublishIsCheckedInOneOrder(t *testing.T) {
	g := &gatekeeper{knowsNobody: true, allowsLittle: true}
	m := metrics.New("test")
	rates := limit.Rates{limit.Publishes: {limit.Address: nothing, limit.Principal: nothing}}
	limits := limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Millisecond, Rates: rates, Rules: []limit.Rule{{Name: "r", Pattern: "a", Rate: nothing}}}
	l := limit.New(limits, m)
	a := newApp(t, func(c *Config) {
		c.Authority, c.Limiter, c.Hook = g, l, refusingHook{}
		c.Broker.Reload(broker.Config{HookTopics: []string{">"}, Rules: []broker.Rule{{Name: "r", Pattern: "a"}}}, time.Now())
	})
	from := Caller{Who: l.WhoAt(addr)}
	ann := from.Who
	ann.Principal = "ann"
	require.NoError(t, l.Admit(limit.Publishes, 1, ann))
	require.NoError(t, l.AdmitTopic("a", ann))
	held, err := l.Begin(t.Context(), ann, false)
	require.NoError(t, err)
	a.cfg.Sessions.BeginDrain(problem.New(wire.CodeDraining, "", ""))

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
		{"unauthorized", func() { g.knowsNobody = false; _ = l.Admit(limit.Publishes, 1, ann) }},
		{"rates.publishes.principal", reload(func(c *limit.Config) { c.Rates = limit.Rates{} })},
		{"invalid_topic", func() { topic = "_a" }},
		{"reserved_topic", func() { topic = "a"; _ = l.AdmitTopic("a", ann) }},
		{"forbidden", func() { g.allowsLittle = false }},
		{"topics.r.rate", reload(func(c *limit.Config) { c.Rules = nil })},
		{"invalid_body", func() { body = "1" }},
		{"limits.calls", held.End},
		{"hook_failed", func() {}},
	} {
		_, err := a.post(t.Context(), from, posting{Topic: topic, ContentType: request.HeaderOf([]string{"application/json"}), Payload: []byte(body)})
		require.ErrorContains(t, err, step.refused, "check %d", i)
		step.mend()
	}
}

// A wrong token spends the rate of its address also if it was looked at before.
func TestAWrongTokenSpendsItsRate(t *testing.T) {
	l := limit.New(limit.Config{Rates: limit.Rates{limit.Publishes: {limit.Address: nothing}}}, metrics.New("test"))
	a := newApp(t, func(c *Config) { c.Authority, c.Limiter = &gatekeeper{knowsNobody: true}, l })
	for _, code := range []wire.Code{wire.CodeUnauthorized, wire.CodeLimited} {
		c := Caller{Who: l.WhoAt(addr)}
		require.True(t, a.Recognise(&c), "no signature is to be checked")
		_, err := a.post(t.Context(), c, posting{Topic: "a"})
		require.ErrorContains(t, err, string(code))
	}
}

// refusingAuthorizer refuses every subscription.
type refusingAuthorizer struct{}

func (refusingAuthorizer) Selects(topics []wire.Start) bool { return len(topics) > 0 }

func (refusingAuthorizer) Authorize(context.Context, hook.Subscribing) error {
	return problem.New(wire.CodeHookFailed, "", "")
}

// subscribes has every way to subscribe to a topic, and the kind of rate that it spends.
// The session was opened by the principal before.
var subscribes = map[string]struct {
	kind limit.Kind
	by   func(a *App, from Caller, session, topic string) error
}{
	"a session": {limit.Sessions, func(a *App, from Caller, _, topic string) error {
		_, err := a.openSession(context.Background(), from, bodyOf(`{"topics":["`+topic+`"]}`))
		return err
	}},
	"a change": {limit.Requests, func(a *App, from Caller, session, topic string) error {
		return a.changeSession(context.Background(), from, session, bodyOf(`{"add":["`+topic+`"]}`))
	}},
	"a poll": {limit.Polls, func(a *App, from Caller, _, topic string) error {
		err := a.pollTopics(context.Background(), from, "topic="+topic, nil)
		return err
	}},
	"a poll with a body": {limit.Polls, func(a *App, from Caller, _, topic string) error {
		err := a.pollTopics(context.Background(), from, "", bodyOf(`{"topics":["`+topic+`"]}`))
		return err
	}},
	"an event stream": {limit.Polls, func(a *App, from Caller, _, topic string) error {
		_, err := a.openEvents(context.Background(), from, "topic="+topic)
		return err
	}},
	"a WebSocket": {limit.Sessions, func(a *App, from Caller, _, topic string) error {
		_, err := a.connect(context.Background(), from, "topic="+topic)
		return err
	}},
	"a TCP connection": {limit.Sessions, func(a *App, from Caller, _, topic string) error {
		err := a.connectByItem(context.Background(), from, cbor.AppendFromJSON(nil, []byte(`{"topics":["`+topic+`"]}`)))
		return err
	}},
	"a command": {limit.Requests, func(a *App, from Caller, session, topic string) error {
		from.grant = nil
		if a.Recognise(&from); from.unknown != nil {
			return from.unknown
		}
		s, err := a.cfg.Sessions.Get([]byte(session))
		if err != nil {
			return err
		}
		c := &commands{app: a, caller: from}
		_, _, err = c.carryOut(context.Background(), s, &wire.Command{Subscribe: []wire.Start{{Topic: topic}}}, &slot{})
		return err
	}},
}

func bodyOf(text string) Body { return func(int) ([]byte, error) { return []byte(text), nil } }

// A subscription fails every check, whichever way it comes. The application is asked last.
func TestASubscriptionIsCheckedInOneOrder(t *testing.T) {
	for name, way := range subscribes {
		t.Run(name, func(t *testing.T) {
			g := &gatekeeper{}
			limits := limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Millisecond}
			l := limit.New(limits, metrics.New("test"))
			a := newApp(t, func(c *Config) { c.Authority, c.Limiter = g, l })
			from := Caller{Who: l.WhoAt(addr)}
			ann := from.Who
			ann.Principal = "ann"
			opened, err := a.openSession(t.Context(), from, bodyOf("{}"))
			require.NoError(t, err)
			held, err := l.Begin(t.Context(), ann, false)
			require.NoError(t, err)
			a.cfg.Authorize = refusingAuthorizer{}
			g.knowsNobody, g.allowsLittle = true, true
			limits.Rates = limit.Rates{limit.Topics: {limit.Principal: nothing}}
			limits.Rates[way.kind][limit.Address], limits.Rates[way.kind][limit.Principal] = nothing, nothing
			l.Reload(limits)
			require.NoError(t, l.Admit(way.kind, 1, ann))
			require.NoError(t, l.Admit(limit.Topics, 1, ann))

			topic := "a..b"
			draining := problem.New(wire.CodeDraining, "", "")
			opens := way.kind != limit.Requests // a session continues until its turn
			if opens {
				a.cfg.Sessions.BeginDrain(draining)
			}
			reload := func(change func(c *limit.Config)) func() {
				return func() { change(&limits); l.Reload(limits) }
			}
			for i, step := range []struct {
				refused string
				applies bool
				mend    func()
			}{
				{"draining", opens, func() { a.cfg.Sessions.BeginDrain(nil) }},
				{"rates." + way.kind.String() + ".address", name != "a command", reload(func(c *limit.Config) { c.Rates[way.kind][limit.Address] = limit.Rate{} })},
				{"unauthorized", true, func() { g.knowsNobody = false; _ = l.Admit(way.kind, 1, ann) }},
				{"rates." + way.kind.String() + ".principal", true, reload(func(c *limit.Config) { c.Rates[way.kind][limit.Principal] = limit.Rate{} })},
				{"invalid_topic", name != "a command", func() { topic = "a" }},
				{"forbidden", true, func() { g.allowsLittle = false; _ = l.Admit(limit.Topics, 1, ann) }},
				{"rates.topics.principal", true, reload(func(c *limit.Config) { c.Rates = limit.Rates{} })},
				{"limits.calls", true, held.End},
				{"hook_failed", true, func() {}},
			} {
				if step.applies {
					require.ErrorContains(t, way.by(a, from, opened.Session, topic), step.refused, "check %d", i)
				}
				step.mend()
			}
			held, free, err := l.TryBegin(limit.Who{}, true)
			require.NoError(t, err)
			require.True(t, free, "every slot is free again")
			held.End()
			require.False(t, a.cfg.Broker.Has("a"), "nothing was joined")
		})
	}
}

// Each call needs one right on its topic, and no other right does.
func TestEachCallNeedsItsRight(t *testing.T) {
	calls := map[string]struct {
		needs auth.Right
		by    func(a *App) error
	}{
		"publish": {auth.Publish, func(a *App) error {
			_, err := a.BeginPublish(t.Context(), Caller{}, "a")
			return err
		}},
		"subscribe": {auth.Subscribe, func(a *App) error {
			_, err := a.openSession(t.Context(), Caller{}, bodyOf(`{"topics":["a"]}`))
			return err
		}},
		"subscribe to presence": {auth.Presence, func(a *App) error {
			_, err := a.openSession(t.Context(), Caller{}, bodyOf(`{"topics":["_presence.a"]}`))
			return err
		}},
		"state": {auth.Subscribe, func(a *App) error {
			return a.Topic(t.Context(), Caller{}, "a", func(wire.TopicState) error { return nil })
		}},
		"presence": {auth.Presence, func(a *App) error {
			return a.Presence(t.Context(), Caller{}, "a", func(_ wire.PresenceList, leave func()) error { leave(); return nil })
		}},
		"history": {auth.History, func(a *App) error {
			h := request.History{Start: wire.Start{Topic: "a", From: wire.FromOldest}, Limit: 1}
			return a.History(t.Context(), Caller{}, h, func(_ iter.Seq[[]*frame.Frame], leave func()) error { leave(); return nil })
		}},
		"manage": {auth.Manage, func(a *App) error {
			change, err := a.BeginSubject(t.Context(), Caller{})
			if err == nil {
				_, err = change.Make(wire.SubjectRequest{Subject: "bob", Forbid: []string{"a"}, UntilMS: time.Now().Add(time.Hour).UnixMilli()})
			}
			return err
		}},
		"delete": {auth.Delete, func(a *App) error {
			return a.DeleteTopic(t.Context(), Caller{}, "a", func(wire.TopicState) error { return nil })
		}},
	}
	for name, call := range calls {
		for _, right := range auth.AllRights() {
			a := newApp(t, func(c *Config) {
				c.Authority = permit(t, "ann", `[{"topics":["a"],"allow":["`+string(right)+`"]},{"topics":["b"],"allow":["subscribe","publish","history","presence","delete","manage"]}]`)
				var err error
				c.Revocations, err = auth.OpenRevocations(filepath.Join(t.TempDir(), "revocations"), time.Hour, 0, zap.NewNop(), time.Now())
				require.NoError(t, err)
				t.Cleanup(c.Revocations.Close)
				c.Presence = presence.New(c.Broker, c.Metrics)
				c.Broker.Reload(broker.Config{Rules: []broker.Rule{{Name: "r", Pattern: "a", Presence: true}}}, time.Now())
			})
			_, err := a.cfg.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}}, 0, time.Now())
			require.NoError(t, err)
			if err = call.by(a); right == call.needs {
				require.NoError(t, err, "%s with the right %s", name, right)
			} else {
				require.ErrorIs(t, err, problem.New(wire.CodeForbidden, "", ""), "%s with the right %s", name, right)
			}
		}
	}
}

// Send does not wait. What waits is published once, and gives back its slot. If its client leaves
// first, it is not published.
func TestSendDoesNotWait(t *testing.T) {
	for name, row := range map[string]struct {
		topic string
		left  bool
		err   string
	}{
		"for a slot":                        {topic: "a"},
		"for the hook":                      {topic: "asked"},
		"for a slot, and the client leaves": {topic: "a", left: true, err: "canceled"},
		"for the hook, which panics":        {topic: "asked", err: errPanicked.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			l := limit.New(limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Hour}, metrics.New("test"))
			goesOn := make(chan struct{})
			a := newApp(t, func(c *Config) {
				c.Limiter, c.Hook = l, meanwhile(func() {
					<-goesOn
					if row.err != "" {
						panic("BUG")
					}
				})
				c.Broker.Reload(broker.Config{HookTopics: []string{"asked"}}, time.Now())
			})
			held, err := l.Begin(t.Context(), limit.Who{}, false)
			require.NoError(t, err)
			p, m, err := a.begin(t.Context(), Caller{}, posting{Topic: row.topic, IdempotencyKey: request.HeaderOf([]string{"k"}), Payload: []byte("1")})
			require.NoError(t, err)
			if row.topic == "asked" {
				held.End()
			}
			_, over, err := p.Send(m)
			require.NoError(t, err)
			require.False(t, over)
			results := make(chan error, 2)
			giveUp := p.Continue(func(_ wire.Published, err error) { results <- err })
			require.Empty(t, results)
			if row.left {
				giveUp()
			} else {
				close(goesOn)
				if row.topic == "a" {
					held.End()
				}
			}
			err = <-results
			if row.err != "" {
				require.ErrorContains(t, err, row.err)
				require.False(t, a.cfg.Broker.Has(row.topic))
			} else {
				require.NoError(t, err)
				require.Equal(t, `1`, string(newest(t, a, row.topic).Data))
			}
			if row.left {
				held.End()
			}
			held, free, err := l.TryBegin(limit.Who{}, true)
			require.NoError(t, err)
			require.True(t, free, "the slot is free again")
			held.End()
			_, _, underWay := a.cfg.Broker.Claim("", &wire.Message{Position: wire.Position{Topic: row.topic}, ID: "k"}, 0, time.Now())
			require.Nil(t, underWay, "the key is free again, or used")
		})
	}
}

// asksAbout is an authorizer that agrees, but not at once, about one topic.
type asksAbout string

func (topic asksAbout) Selects(topics []wire.Start) bool {
	return slices.ContainsFunc(topics, func(s wire.Start) bool { return s.Topic == string(topic) })
}

func (asksAbout) Authorize(ctx context.Context, _ hook.Subscribing) error { return ctx.Err() }

// finished returns the reply to a command that does not end the connection.
func finished(finish transport.Finish, _ ...func()) *wire.Reply {
	reply, err := finish()
	if err != nil {
		panic(err)
	}
	return reply
}

// A command that must wait runs later, once.
func TestACommandThatMustWaitRunsLater(t *testing.T) {
	m := metrics.New("test")
	l := limit.New(limit.Config{Calls: 1, Rates: limit.Rates{limit.Publishes: {limit.All: nothing}, limit.Requests: {limit.All: nothing}}}, m)
	a := newApp(t, func(c *Config) { c.Limiter = l })
	d, err := a.connect(t.Context(), Caller{}, "topic=x")
	require.NoError(t, err)
	defer a.End(d.Session)
	held, err := l.Begin(t.Context(), limit.Who{}, false)
	require.NoError(t, err)
	for _, command := range []string{`{"publish":{"topic":"a","data":1},"ref":1}`, `{"subscribe":["b"],"ref":1}`} {
		done := make(chan *wire.Reply, 1)
		reply, later, giveUp, err := d.Do(t.Context(), d.Session, transport.Action{Command: []byte(command)}, func(f transport.Finish) { done <- finished(f) })
		require.NoError(t, err)
		require.Nil(t, reply)
		if later != nil {
			go func() { done <- finished(later(t.Context())) }()
		} else {
			require.NotNil(t, giveUp, command)
		}
		held.End()
		require.Nil(t, (<-done).Problem, "it is the first")
		held, err = l.Begin(t.Context(), limit.Who{}, false)
		require.NoError(t, err)
	}
	held.End()
}

// A subscribe command waits for the application, and then is made once.
func TestACommandThatTheApplicationIsAskedAboutRunsLater(t *testing.T) {
	l := limit.New(limit.Config{Rates: limit.Rates{limit.Requests: {limit.All: nothing}}}, metrics.New("test"))
	a := newApp(t, func(c *Config) { c.Limiter, c.Authorize = l, asksAbout("asked") })
	d, err := a.connect(t.Context(), Caller{}, "topic=x")
	require.NoError(t, err)
	defer a.End(d.Session)
	reply, later, _, err := d.Do(t.Context(), d.Session, transport.Action{Command: []byte(`{"subscribe":["asked"],"ref":1}`)}, nil)
	require.NoError(t, err)
	require.Nil(t, reply)
	finish, _ := later(t.Context())
	require.False(t, a.cfg.Broker.Has("asked"), "finish subscribes, before the reply")
	reply = finished(finish)
	require.Nil(t, reply.Problem, "it is the first")
	require.Len(t, reply.Positions, 1)
}

// Errors without an answer close the connection. Internal errors hide their cause.
func TestProblemsOfErrors(t *testing.T) {
	a := newApp(t)
	for _, err := range withoutAnswer {
		require.Nil(t, a.Problem(err), err)
	}
	hidden := errors.New("the cause")
	require.Equal(t, wire.CodeInternal, a.Problem(hidden).Code)
	require.NotContains(t, a.Problem(hidden).Detail, "cause")
	require.Equal(t, wire.CodeForbidden, a.Problem(problem.New(wire.CodeForbidden, "", "")).Code)
}

// The list of a daemon that drains still has those who have moved to the next daemon. A client that
// subscribes there must not take it for the truth.
func TestADrainingDaemonHasNoListOfMembers(t *testing.T) {
	a := newApp(t, func(c *Config) {
		c.Presence = presence.New(c.Broker, c.Metrics)
		c.Broker.Reload(broker.Config{Rules: []broker.Rule{{Name: "r", Pattern: "a", Presence: true}}}, time.Now())
	})
	list := func() error {
		return a.Presence(t.Context(), Caller{}, "a", func(_ wire.PresenceList, leave func()) error { leave(); return nil })
	}
	require.NoError(t, list())
	a.cfg.Sessions.BeginDrain(problem.New(wire.CodeDraining, "", ""))
	require.ErrorIs(t, list(), problem.New(wire.CodeDraining, "", ""))
}
