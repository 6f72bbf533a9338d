package httpapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/presence"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A kit is an API behind a real http.Server on an in-memory network. So it can run in a
// synctest bubble.
type kit struct {
	*testing.T
	cfg    parts
	client *http.Client
	api    *API
	begun  time.Time // when the lane started, if there is one
}

type settings struct {
	broker    broker.Config
	log       func(*broker.Broker) broker.Log // nil: in memory
	session   session.Config
	transport transport.Config
	authority app.Authority
	limits    limit.Config
	hook      app.Hook
	authorize app.Authorizer // of subscriptions
	origins   []string
}

func newKit(t *testing.T, s settings) *kit {
	k := &kit{T: t, cfg: newParts(s)}
	k.wantNoNewSeries()
	k.serve()
	return k
}

// defaults are the transport's settings in tests that say nothing else.
var defaults = transport.Config{}.WithDefaults()

// parts are the components of a kit's API.
type parts struct {
	app.Config
	Polls   *transport.Server
	Lane    lane.Way
	Origins []string
	Hosts   *cors.Hosts
}

func (p parts) newAPI() *API {
	return New(Config{
		App: app.New(p.Config), Limiter: p.Limiter, Polls: p.Polls, Metrics: p.Metrics,
		Way: p.Lane, Origins: p.Origins, Hosts: p.Hosts, Log: p.Log,
	})
}

// everyHost allows every name in Host.
func everyHost() *cors.Hosts { return cors.NewHosts([]string{cors.Every}, false, zap.NewNop()) }

// silence is how long a WebSocket client may send nothing.
func (p parts) silence() time.Duration { return 2*p.Polls.Config().Heartbeat + 10*time.Second }

// newParts creates and connects the components.
func newParts(s settings) parts {
	if s.authority == nil {
		s.authority = auth.Open{}
	}
	if s.hook == nil {
		s.hook = hook.NewPublishes(hook.Config{}, nil, metrics.New("test"), zap.NewNop())
	} else {
		s.broker.HookTopics = []string{"asked.>"}
	}
	if s.authorize == nil {
		s.authorize = hook.NewSubscriptions(hook.AuthorizeConfig{}, nil, metrics.New("test"), zap.NewNop())
	}
	s.broker.Rules = withLimits(s.broker.Rules, s.limits)
	m := metrics.New("test")
	b := broker.New(s.broker, m, time.Now())
	if s.log != nil {
		b = broker.NewWithLog(s.broker, m, time.Now(), s.log)
	}
	s.limits.Sessions = s.session.MaxSessions
	limiter := limit.New(s.limits, m)
	s.session.Slots = limiter.Sessions()
	members := presence.New(b, m)
	s.session.Presence = members
	sessions := session.NewRegistry(s.session, b, m)
	limits := wire.Limits{MessageBytes: 64 << 10, Subscriptions: sessions.Config().Subscriptions}
	return parts{
		Config: app.Config{
			Broker: b, Sessions: sessions, Presence: members, Authority: s.authority, Limiter: limiter, Hook: s.hook, Authorize: s.authorize,
			Metrics: m, Log: zap.NewNop(), Limits: limits,
		},
		Polls: transport.New(s.transport, limits, b.Memory(), m, nil), Origins: s.origins, Hosts: everyHost(),
	}
}

// withLimits adds a broker rule for each limit rule, as the daemon's settings do.
func withLimits(rules []broker.Rule, limits limit.Config) []broker.Rule {
	for _, rule := range limits.Rules {
		rules = append(rules, broker.Rule{Name: rule.Name, Pattern: rule.Pattern})
	}
	return rules
}

func (k *kit) serve() {
	l := newPipeListener()
	k.api = k.cfg.newAPI()
	server := &http.Server{Handler: k.api, ReadHeaderTimeout: time.Minute}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	network := &http.Transport{DialContext: l.dial, DisableCompression: true}
	k.client = &http.Client{Transport: network}
	k.Cleanup(func() {
		network.CloseIdleConnections()
		require.NoError(k, server.Close())
		running.Wait()
		time.Sleep(time.Second) // fake time: net/http lingers before it closes a connection after an error
		k.cfg.Broker.Close()
	})
}

// pipeListener is an in-memory network with one server.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	if from, ok := ctx.Value(fromKey{}).(net.Addr); ok {
		there = addressed{there, from}
	}
	select {
	case l.conns <- there:
		return here, nil
	case <-l.done:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

// fromKey is the context key of a connection's remote address, a net.Addr.
type fromKey struct{}

// An addressed is a connection with a given remote address.
type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

// do sends a request with the given headers ("Name: value") and body.
func (k *kit) do(method, path, body string, headers ...string) *http.Response {
	k.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, "http://pubsubd"+path, strings.NewReader(body))
	require.NoError(k, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	resp, err := k.client.Do(r)
	require.NoError(k, err)
	return resp
}

// get is do that reads the whole answer and returns its status and body.
func (k *kit) get(method, path, body string, headers ...string) (int, string) {
	k.Helper()
	resp := k.do(method, path, body, headers...)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(k, err)
	return resp.StatusCode, string(text)
}

const jsonType = "Content-Type: application/json"

// counted returns the sum of a metric's samples that have all these label values.
func (k *kit) counted(name string, labels ...string) float64 {
	k.Helper()
	families, err := k.cfg.Metrics.Registry.Gather()
	require.NoError(k, err)
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, sample := range family.GetMetric() {
			has := map[string]bool{}
			for _, label := range sample.GetLabel() {
				has[label.GetValue()] = true
			}
			matches := true
			for _, label := range labels {
				matches = matches && has[label]
			}
			if matches {
				sum += sample.GetCounter().GetValue() + sample.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// wantNoNewSeries requires that the test adds no counter series. Every series must exist
// at 0 before its first event.
func (k *kit) wantNoNewSeries() {
	k.Helper()
	before := k.series()
	k.Cleanup(func() {
		for name := range k.series() {
			require.True(k, before[name], "announce it in metrics.New: %s", name)
		}
	})
}

// series returns the names of pubsubd's counter series.
func (k *kit) series() map[string]bool {
	k.Helper()
	names := map[string]bool{}
	families, err := k.cfg.Metrics.Registry.Gather()
	require.NoError(k, err)
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "pubsubd_") || family.GetType().String() != "COUNTER" {
			continue
		}
		for _, sample := range family.GetMetric() {
			name := family.GetName()
			for _, label := range sample.GetLabel() {
				name += " " + label.GetValue()
			}
			if !strings.Contains(name, "rate") { // a reload adds rates
				names[name] = true
			}
		}
	}
	return names
}

func goingAway() *wire.Problem { return problem.New(wire.CodeDraining, "elsewhere", "going away") }
