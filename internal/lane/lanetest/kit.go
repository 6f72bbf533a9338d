// Package lanetest helps to test what the lane serves: it has the parts of a server, and
// clients that control every byte.
package lanetest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/presence"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Settings are those of the parts. What is nil or zero has its default.
type Settings struct {
	Broker    broker.Config
	Log       func(*broker.Broker) broker.Log // nil: in memory
	Session   session.Config
	Transport transport.Config
	Authority app.Authority
	Revoked   *auth.Revocations // the sessions heed them; nil: none
	Limits    limit.Config
	Hook      app.Hook
	Authorize app.Authorizer // of subscriptions
	Origins   []string
	Hosts     []string // nil: every host

	MessageBytes int // 0: 64 KiB
}

// Defaults are the transport's settings in tests that say nothing else.
var Defaults = transport.Config{}.WithDefaults()

// Parts are the components of a kit's API.
type Parts struct {
	app.Config
	Polls   *transport.Server
	Lane    lane.Way
	Origins []string
	Hosts   *cors.Hosts
}

// Silence is how long a WebSocket client may send nothing.
func (p Parts) Silence() time.Duration { return 2*p.Polls.Config().Heartbeat + 10*time.Second }

// NewParts creates and connects the components.
func NewParts(s Settings) Parts {
	if s.Authority == nil {
		s.Authority = auth.Open{}
	}
	if s.Hook == nil {
		s.Hook = hook.NewPublishes(hook.Config{}, nil, metrics.New("test"), zap.NewNop())
	} else {
		s.Broker.HookTopics = []string{"asked.>"}
	}
	if s.Authorize == nil {
		s.Authorize = hook.NewSubscriptions(hook.AuthorizeConfig{}, nil, metrics.New("test"), zap.NewNop())
	}
	if s.Hosts == nil {
		s.Hosts = []string{cors.Every}
	}
	s.Broker.Rules = WithLimits(s.Broker.Rules, s.Limits)
	m := metrics.New("test")
	b := broker.New(s.Broker, m, time.Now())
	if s.Log != nil {
		b = broker.NewWithLog(s.Broker, m, time.Now(), s.Log)
	}
	s.Limits.Sessions = s.Session.MaxSessions
	limiter := limit.New(s.Limits, m)
	s.Session.Slots = limiter.Sessions()
	members := presence.New(b, m)
	s.Session.Presence = members
	s.Session.Forbidden = s.Revoked.Forbidden
	if s.Session.Revoked == nil {
		s.Session.Revoked = s.Revoked.Revoked
	}
	sessions := session.NewRegistry(s.Session, b, m)
	limits := wire.Limits{MessageBytes: cmp.Or(s.MessageBytes, 64<<10), Subscriptions: sessions.Config().Subscriptions}
	return Parts{
		Config: app.Config{
			Broker: b, Sessions: sessions, Presence: members, Authority: s.Authority, Revocations: s.Revoked, Limiter: limiter, Hook: s.Hook, Authorize: s.Authorize,
			Metrics: m, Log: zap.NewNop(), Limits: limits,
		},
		Polls: transport.New(s.Transport, limits, b.Memory(), m, nil), Origins: s.Origins, Hosts: cors.NewHosts(s.Hosts, false, zap.NewNop()),
	}
}

// WithLimits adds a broker rule for each limit rule, as the daemon's settings do.
func WithLimits(rules []broker.Rule, limits limit.Config) []broker.Rule {
	for _, rule := range limits.Rules {
		rules = append(rules, broker.Rule{Name: rule.Name, Pattern: rule.Pattern})
	}
	return rules
}

// A ControlFunc sets socket options, like Control in net.Dialer and net.ListenConfig.
type ControlFunc func(network, address string, c syscall.RawConn) error

// Buffers limits a socket's send and receive buffers to about this many bytes each.
func Buffers(bytes int) ControlFunc {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		controlErr := c.Control(func(fd uintptr) {
			for _, buffer := range []int{syscall.SO_SNDBUF, syscall.SO_RCVBUF} {
				if err == nil {
					err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, buffer, bytes)
				}
			}
		})
		if controlErr != nil {
			return controlErr
		}
		return err
	}
}

// A Kit is a lane with its app and its broker, and clients of it.
type Kit struct {
	testing.TB
	Parts Parts
	HTTP  *http.Client // nil in a kit of New; its network is the kit's
	Lane  *lane.Lane

	control    ControlFunc
	addr       string    // of requests
	socketAddr string    // of WebSockets, in a kit of New
	joined     *sync.Map // of addresses of clients, in a kit of New: the lane has their connections
	begun      time.Time // when the lane started
}

// A Handler makes the handler of requests that the lane does not read, and its lane.
type Handler func(Parts) (http.Handler, *lane.Lane)

// Serve returns a kit with a lane behind net/http. It uses real sockets, because the lane
// makes raw system calls; control sets options of the sockets of both sides.
func Serve(t testing.TB, way lane.Way, s Settings, control ControlFunc, handler Handler) *Kit {
	k := newKit(t, way, s, control)
	served, l := handler(k.Parts)
	k.Lane, k.begun = l, time.Now()
	socket := k.listen()
	k.addr = socket.Addr().String()
	server := &http.Server{
		Handler: served, ReadHeaderTimeout: time.Minute, ConnContext: listen.NewContext, ConnState: listen.ConnState,
		DisableGeneralOptionsHandler: true, // as the daemon does
	}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(socket) })
	running.Go(func() { _ = server.Serve(l.Listener()) })
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return k.dialTo(ctx, k.addr) }
	network := &http.Transport{DialContext: dial, DisableCompression: true}
	k.HTTP = &http.Client{Transport: network}
	k.Cleanup(func() {
		network.CloseIdleConnections()
		require.NoError(k, server.Close())
		l.Close()
		running.Wait()
		k.Parts.Broker.Close()
	})
	return k
}

// New returns a kit of a lane, an app and a broker, and nothing else: join gives every
// connection to the lane. What the lane hands back, nobody serves.
func New(t testing.TB, way lane.Way, s Settings, control ControlFunc, join func(*lane.Lane, net.Conn) bool) *Kit {
	k := newKit(t, way, s, control)
	k.joined = new(sync.Map)
	a := app.New(k.Parts.Config)
	k.begun = time.Now()
	k.Lane = lane.New(lane.Config{
		App: a, Polls: k.Parts.Polls, Limiter: k.Parts.Limiter, Metrics: k.Parts.Metrics, Way: way,
		Origins: cors.New(k.Parts.Origins, k.Parts.Log), Hosts: k.Parts.Hosts,
	})
	requests, sockets := k.listen(), k.listen()
	k.addr, k.socketAddr = requests.Addr().String(), sockets.Addr().String()
	var running sync.WaitGroup
	running.Go(func() {
		for nc, err := requests.Accept(); err == nil; nc, err = requests.Accept() {
			from := nc.RemoteAddr().String()
			if !join(k.Lane, nc) {
				nc.Close()
			}
			k.joined.Store(from, true)
		}
	})
	running.Go(func() {
		for nc, err := sockets.Accept(); err == nil; nc, err = sockets.Accept() {
			running.Go(func() { k.carry(a, nc) })
		}
	})
	k.Cleanup(func() {
		requests.Close()
		sockets.Close()
		k.Lane.Close()
		running.Wait()
		k.Parts.Broker.Close()
	})
	return k
}

// carry opens a WebSocket, and gives it to the lane.
func (k *Kit) carry(a *app.App, nc net.Conn) {
	var query string
	u := ws.Upgrader{OnRequest: func(uri []byte) error {
		_, query, _ = strings.Cut(string(uri), "?")
		return nil
	}}
	_, err := u.Upgrade(nc)
	var d transport.Duplex
	caller := app.Caller{Who: listen.Counted(nc).Who(nil)}
	if err == nil {
		asked := request.ConnectOf(query, request.Accepts{}, &caller.Credentials)
		var o app.Opening
		if o, err = a.BeginOpen(context.Background(), caller, limit.Sessions, app.OnTopics(asked.Session)); err == nil {
			d, err = o.Connect(asked, "websocket")
		}
	}
	if err != nil {
		k.Errorf("a WebSocket was not opened: %v", err)
		nc.Close()
		return
	}
	d.Conversation = k.Parts.Polls.NewWebSocket(d.Request.Format, false, &listen.Owner{Who: caller.Who, Conn: listen.Of(nc)}, time.Now())
	d.Request.Format, d.Request.Via = d.Conversation.Format(), transport.ViaWebSocket
	k.Lane.Carry(context.Background(), nc, d)
}

func newKit(t testing.TB, way lane.Way, s Settings, control ControlFunc) *Kit {
	k := &Kit{TB: t, Parts: NewParts(s), control: control}
	k.WantNoNewSeries()
	k.Parts.Lane = way
	return k
}

// listen listens on loopback. The limiter counts each connection.
func (k *Kit) listen() net.Listener {
	k.Helper()
	l, err := (&net.ListenConfig{Control: k.control}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(k, err)
	return k.Parts.Counted(l)
}

func (k *Kit) dialTo(ctx context.Context, addr string) (net.Conn, error) {
	return (&net.Dialer{Control: k.control}).DialContext(ctx, "tcp", addr)
}

// Addr returns where the kit listens.
func (k *Kit) Addr() string { return k.addr }

// Ticking has the clocks of the lane and its sessions follow real time, as the daemon does:
// polls time out.
func (k *Kit) Ticking() {
	ticker, done := time.NewTicker(5*time.Millisecond), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case now := <-ticker.C:
				k.Lane.Tick(now)
				k.Parts.Sessions.Sweep(now)
			case <-done:
				return
			}
		}
	})
	k.Cleanup(func() {
		ticker.Stop()
		close(done)
		running.Wait()
	})
}

// Counted returns a listener that registers every connection of l with the limiter.
func (p Parts) Counted(l net.Listener) net.Listener { return &countedListener{l, p} }

type countedListener struct {
	net.Listener
	cfg Parts
}

func (l *countedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	counted, err := l.cfg.Limiter.Connect(nc.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
	if err != nil {
		return nil, err
	}
	return listen.New(nc, counted, l.cfg.Metrics, nil), nil
}

// Dial connects to the kit's server, over the network of its client if it has one.
func (k *Kit) Dial() (net.Conn, error) {
	if k.HTTP == nil {
		return k.dialTo(context.Background(), k.addr)
	}
	return k.HTTP.Transport.(*http.Transport).DialContext(context.Background(), "tcp", "pubsubd")
}

// Do sends a request with the given headers ("Name: value") and body.
func (k *Kit) Do(method, path, body string, headers ...string) *http.Response {
	k.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, "http://pubsubd"+path, strings.NewReader(body))
	require.NoError(k, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	resp, err := k.HTTP.Do(r)
	require.NoError(k, err)
	return resp
}

// Get is Do that reads the whole answer and returns its status and body.
func (k *Kit) Get(method, path, body string, headers ...string) (int, string) {
	k.Helper()
	resp := k.Do(method, path, body, headers...)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(k, err)
	return resp.StatusCode, string(text)
}

// JSONType is the header of a body in JSON, and TakesGzip that of a client that takes gzip.
const (
	JSONType  = "Content-Type: application/json"
	TakesGzip = "Accept-Encoding: gzip, deflate, br, zstd\r\n"
)

// WantProblem sends a request and requires a complete problem with this code, in JSON.
func (k *Kit) WantProblem(code wire.Code, method, path, body string, headers ...string) wire.Problem {
	k.Helper()
	resp := k.Do(method, path, body, headers...)
	defer resp.Body.Close()
	require.Equal(k, wire.ProblemType, resp.Header.Get("Content-Type"))
	require.Equal(k, "no-store, no-transform", resp.Header.Get("Cache-Control"))
	var p wire.Problem
	require.NoError(k, json.NewDecoder(resp.Body).Decode(&p))
	require.Equal(k, code, p.Code, "%+v", p)
	require.Equal(k, problem.Codes()[code], resp.StatusCode)
	require.Equal(k, resp.StatusCode, p.Status)
	require.NotEmpty(k, p.Detail)
	require.NotEmpty(k, p.Remedy)
	if p.RetryAfterMS > 0 {
		seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		require.NoError(k, err)
		require.GreaterOrEqual(k, int64(seconds)*1000, p.RetryAfterMS)
	}
	return p
}

// Refused requests an event stream, perhaps with a Last-Event-ID, and returns the
// refusal.
func (k *Kit) Refused(query, lastEventID string) (status int, answer string) {
	k.Helper()
	if lastEventID == "" {
		return k.Get("GET", "/v1/sse?"+query, "")
	}
	return k.Get("GET", "/v1/sse?"+query, "", "Last-Event-ID: "+lastEventID)
}

// Open opens a session over HTTP, or in the registry if the kit has no HTTP.
func (k *Kit) Open(body string, headers ...string) (opened wire.SessionOpened) {
	k.Helper()
	if k.HTTP == nil {
		var o session.Opening
		require.NoError(k, json.Unmarshal([]byte(body), &struct{ Topics *[]wire.Start }{&o.Topics}))
		o.Ack = true
		s, positions, err := k.Parts.Sessions.Open(context.Background(), o, time.Now())
		require.NoError(k, err)
		return wire.SessionOpened{Session: s.ID(), Positions: positions}
	}
	status, text := k.Get("POST", "/v1/sessions", body, append(headers, JSONType)...)
	require.Equal(k, http.StatusCreated, status, text)
	require.NoError(k, json.Unmarshal([]byte(text), &opened))
	return opened
}

// OpenA opens a session on topic a.
func (k *Kit) OpenA() string {
	k.Helper()
	return k.Open(`{"topics":["a"]}`).Session
}

// Publish publishes JSON over HTTP, or to the broker if the kit has no HTTP.
func (k *Kit) Publish(topic, data string) {
	k.Helper()
	if k.HTTP == nil {
		_, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte(data)}, 0, time.Now())
		require.NoError(k, err)
		return
	}
	status, body := k.Get("POST", "/v1/topics/"+topic+"/messages", data, JSONType)
	require.Equal(k, 200, status, body)
}

// Tell publishes the messages first to last to topic a, each size bytes long. It calls
// the broker directly.
func (k *Kit) Tell(first, last, size int) {
	k.Helper()
	for n := first; n <= last; n++ {
		text := fmt.Sprintf("%d ", n)
		text += strings.Repeat(".", max(0, size-len(text)))
		published, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte(`"` + text + `"`)}, 0, time.Now())
		require.NoError(k, err)
		require.EqualValues(k, n, published.Position.Offset)
	}
}

// Held returns the messages in a topic's history.
func (k *Kit) Held(topic string) []*wire.Message {
	k.Helper()
	frames, _ := k.Parts.Broker.ReadTopic(wire.Start{Topic: topic, From: wire.FromOldest}, frame.Limit{Frames: 10_000, Bytes: 64 << 20}, time.Now())
	messages := make([]*wire.Message, len(frames))
	for i, f := range frames {
		content, err := wire.ParseLine(f.Bytes(frame.NDJSON))
		require.NoError(k, err)
		require.NotNil(k, content.Message)
		messages[i] = content.Message
	}
	return messages
}

// Item returns what a command publishes.
func Item(topic, data string) *wire.PublishItem {
	return &wire.PublishItem{Topic: topic, Data: json.RawMessage(data)}
}

// Long returns a payload of at least n bytes that compresses well.
func Long(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of a long message; ", i)
	}
	return b.String()
}

// GoingAway is the problem that a drain tells clients.
func GoingAway() *wire.Problem { return problem.New(wire.CodeDraining, "elsewhere", "going away") }

// Once is a rate of one call an hour.
var Once = limit.Rate{PerSecond: 1.0 / 3600, Burst: 1}

// LongStay keeps sessions open for a day without polls.
func LongStay() session.Config { return session.Config{InactivityTimeout: 24 * time.Hour} }
