package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A recorder is an authority and an authorizer that records its calls. Only the app calls
// it. Ann has every right, but for one. The application is asked about all topics, once for each request.
type recorder struct {
	auth.Open
	mu    sync.Mutex
	asked []string
	lacks auth.Right // what ann may do nowhere; empty: nothing
}

func (r *recorder) note(what ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, strings.Join(what, " "))
}

// take returns the calls since the last take.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := r.asked
	r.asked = nil
	return asked
}

// takeFromAnn takes a right from the grants to come.
func (r *recorder) takeFromAnn(right auth.Right) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lacks = right
}

var ann = &auth.Grant{Subject: "ann", Rights: auth.Everything}

func (r *recorder) Identify(auth.Credentials, bool) (*auth.Grant, error) {
	r.note("identify")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lacks == "" {
		return ann, nil
	}
	others := slices.DeleteFunc(auth.AllRights(), func(right auth.Right) bool { return right == r.lacks })
	claim, err := json.Marshal([]map[string]any{{"topics": []string{">"}, "allow": others}})
	if err != nil {
		return nil, err
	}
	rights, err := auth.ParseRights(claim, "")
	return &auth.Grant{Subject: "ann", Rights: rights}, err
}

func (*recorder) Selects(topics []wire.Start) bool { return len(topics) > 0 }

func (r *recorder) Authorize(_ context.Context, s hook.Subscribing) error {
	what := []string{"hook", s.Principal.Subject}
	if s.Opens {
		what = append(what, "opens")
	}
	for _, start := range s.Topics {
		what = append(what, start.Topic)
	}
	r.note(what...)
	return nil
}

// asks lists the right that each route needs, and what the app asks for it after authentication. A
// session's id is the permission for its routes.
var asks = map[string]struct {
	query, body string
	right       auth.Right
	want        []string
	public      bool // everyone may call it: no authentication
}{
	"GET /v1/topics":                   {right: auth.Subscribe},
	"GET /v1/topics/{topic}":           {right: auth.Subscribe},
	"DELETE /v1/topics/{topic}":        {right: auth.Delete},
	"POST /v1/topics/{topic}/messages": {body: "1", right: auth.Publish},
	"GET /v1/topics/{topic}/messages":  {right: auth.History},
	"GET /v1/topics/{topic}/presence":  {right: auth.Presence},
	"POST /v1/messages":                {body: `[{"topic":"a","data":1},{"topic":"b","data":2}]`, right: auth.Publish},
	"POST /v1/subjects":                {body: fmt.Sprintf(`{"subject":"eve","forbid":["a"],"until_ms":%d}`, time.Now().Add(time.Hour).UnixMilli()), right: auth.Manage},
	"POST /v1/sessions":                {body: `{"topics":["a","b"]}`, right: auth.Subscribe, want: []string{"hook ann opens a b"}},
	"GET /v1/sessions/{id}":            {},
	"PATCH /v1/sessions/{id}":          {body: `{"add":["b"]}`, right: auth.Subscribe, want: []string{"hook ann b"}},
	"DELETE /v1/sessions/{id}":         {},
	"POST /v1/sessions/{id}/close":     {},
	"GET /v1/sessions/{id}/poll":       {query: "?ack=0"},
	"GET /v1/poll":                     {query: "?topic=a@oldest", right: auth.Subscribe, want: []string{"hook ann opens a"}},
	"POST /v1/poll":                    {body: `{"topics":["a@oldest"]}`, right: auth.Subscribe, want: []string{"hook ann opens a"}},
	"GET /v1/sse":                      {query: "?topic=a", right: auth.Subscribe, want: []string{"hook ann opens a"}},
	"GET /v1/ws":                       {query: "?topic=a", right: auth.Subscribe, want: []string{"hook ann opens a"}},
	"GET /v1/openapi.yaml":             {},
	"GET /v1/client.js":                {public: true},
	"GET /v1/live.js":                  {public: true},
	"GET /v1/share.js":                 {public: true},
	"GET /v1/outbox.js":                {public: true},
	"GET /v1/react.js":                 {public: true},
}

// asGet returns the GET whose head a route answers, or the route.
func asGet(at string) string { return strings.Replace(at, "HEAD ", "GET ", 1) }

// For every route that is not public, the app authenticates the caller and checks permission
// once. It counts every call.
func TestEveryRouteGoesThroughTheApp(t *testing.T) {
	for _, at := range routes(t, newAPI(lanetest.NewParts(lanetest.Settings{})).router) {
		t.Run(at, func(t *testing.T) {
			ask, ok := asks[asGet(at)]
			require.True(t, ok, "a new route: say in asks what the app asks for it")
			r := &recorder{}
			k := serveLane(t, lane.HandOff, lanetest.Settings{Authority: r, Authorize: r, Revoked: openRevocations(t), Broker: broker.Config{Rules: []broker.Rule{{Pattern: "a", Presence: true}}}}, nil)
			k.Publish("a", "1")
			id := k.Open(`{"topics":["a@oldest"]}`).Session
			r.take()
			method, path, _ := strings.Cut(at, " ")
			path = strings.NewReplacer("{topic}", "a", "{id}", id).Replace(path) + ask.query
			call := func() (status int, answer string) {
				if strings.HasSuffix(at, "/ws") {
					s, err := k.TryDialSocket(path)
					if err != nil {
						problem, _ := errors.AsType[*wire.Problem](err)
						return problem.Status, ""
					}
					s.Close()
					return http.StatusSwitchingProtocols, ""
				}
				resp := k.Do(method, path, ask.body, lanetest.JSONType)
				defer resp.Body.Close()
				if ask.right != "" && resp.Header.Get("Content-Type") != "text/event-stream" {
					text, err := io.ReadAll(resp.Body)
					require.NoError(t, err)
					answer = string(text)
				}
				return resp.StatusCode, answer
			}
			status, answer := call()
			require.Less(t, status, 300)
			want := append([]string{"identify"}, ask.want...)
			if ask.public {
				want = nil
			}
			require.Equal(t, want, r.take())

			if r.takeFromAnn(ask.right); asGet(at) == "GET /v1/topics" {
				require.Equal(t, method == http.MethodGet, strings.Contains(answer, `"topic":"a"`))
				_, answer = call()
				require.NotContains(t, answer, `"topic":"a"`)
			} else if ask.right != "" {
				status, _ = call()
				require.Equal(t, http.StatusForbidden, status)
				require.Equal(t, []string{"identify"}, r.take(), "the application is not asked")
			}

			k.refuseAll()
			call() // the first call may still be allowed
			call()
			require.Positive(t, k.Counted("pubsubd_requests_refused_total", "limited"))
		})
	}
}

// refuseAll limits each kind of call to one.
func (k *kit) refuseAll() {
	var rates limit.Rates
	for _, kind := range limit.Kinds() {
		if kind != limit.Connections { // the listener counts these
			rates[kind][limit.All] = lanetest.Once
		}
	}
	k.Parts.Limiter.Reload(limit.Config{Rates: rates})
}

// As TestEveryRouteGoesThroughTheApp, for requests that the lane serves.
func TestEveryRequestOnTheLaneGoesThroughTheApp(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		r := &recorder{}
		k := serveLane(t, way, lanetest.Settings{Authority: r, Authorize: r}, nil)
		k.Publish("a", "1")
		id := k.Open(`{"topics":["a@oldest"]}`).Session
		k.WantOnLane(0) // net/http has the client's connection back
		c := k.CallOnLane()
		served := func() float64 { return k.Counted("pubsubd_calls_total", "lane") }
		for request, asks := range map[string]struct {
			right auth.Right
			want  []string
		}{
			lanetest.Publishing("a", "2"):                             {auth.Publish, []string{"identify"}},
			lanetest.Polling(id, 0):                                   {"", []string{"identify"}},
			"GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n": {auth.Subscribe, []string{"identify", "hook ann opens a"}},
		} {
			before := served()
			r.take()
			c.Send(request)
			c.WantAnswer(http.StatusOK)
			require.Equal(t, asks.want, r.take(), request)
			require.Equal(t, before+1, served(), "on the lane: %s", request)
			if asks.right != "" {
				r.takeFromAnn(asks.right)
				c.Send(request)
				c.WantAnswer(http.StatusForbidden)
				r.takeFromAnn("")
			}
		}
	})
}

// commandAsks lists the right that each command needs, and what the app asks for it, by its JSON
// member.
var commandAsks = map[string]struct {
	value any
	right auth.Right
	want  []string
}{
	"subscribe":   {[]string{"b", "c"}, auth.Subscribe, []string{"hook ann b c"}},
	"unsubscribe": {[]string{"a"}, "", nil},
	"publish":     {lanetest.Item("b", "1"), auth.Publish, nil},
	"ack":         {0, "", nil},
	"ping":        {true, "", nil},
	"auth":        {"a token", "", []string{"identify"}},
}

// The app checks and counts every command on every two-way connection. It authenticates
// the caller when the connection opens.
func TestEveryCommandGoesThroughTheApp(t *testing.T) {
	commands := reflect.TypeFor[wire.Command]()
	for i := range commands.NumField() {
		name, _, _ := strings.Cut(commands.Field(i).Tag.Get("json"), ",")
		ask, ok := commandAsks[name]
		if name == "ref" {
			continue
		}
		require.True(t, ok, "a new command: say in commandAsks what the app asks for %s", name)
		for _, by := range []string{"WebSocket", "WebSocket in CBOR", "TCP"} {
			t.Run(name+" by "+by, func(t *testing.T) {
				lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
					r := &recorder{}
					k := serveLane(t, way, lanetest.Settings{Authority: r, Authorize: r}, nil)
					id := k.Open(`{"topics":["a"]}`).Session
					r.take()
					c := k.Commander(by, id)
					require.Equal(t, []string{"identify"}, r.take())
					c.Send(map[string]any{name: ask.value, "ref": 1})
					require.Nil(t, c.WantReply(1).Problem)
					require.Equal(t, ask.want, r.take())

					if ask.right != "" {
						r.takeFromAnn(ask.right)
						powerless := k.Commander(by, id)
						powerless.Send(map[string]any{name: ask.value, "ref": 1})
						refused := powerless.WantReply(1).Problem
						require.NotNil(t, refused)
						require.Equal(t, wire.CodeForbidden, refused.Code)
						r.takeFromAnn("")
						c = k.Commander(by, id)
					}
					k.refuseAll()
					c.Send(map[string]any{name: ask.value, "ref": 2})
					require.Nil(t, c.WantReply(2).Problem)
					c.Send(map[string]any{name: ask.value, "ref": 3})
					refused := c.WantReply(3).Problem
					require.NotNil(t, refused)
					require.Equal(t, wire.CodeLimited, refused.Code)
				})
			})
		}
	}
}

// The app checks permission for the topics of a TCP connection without a session.
func TestEveryTCPOpeningGoesThroughTheApp(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		r := &recorder{}
		k := serveLane(t, way, lanetest.Settings{Authority: r, Authorize: r}, nil)
		conn, err := net.Dial("tcp", k.OpenPort())
		require.NoError(t, err)
		defer conn.Close()
		c := &lanetest.RawTCP{TB: t, Conn: conn, Frames: wire.NewCBORDecoder(conn)}
		c.Send(wire.ConnectRequest{Topics: []wire.Start{{Topic: "a"}, {Topic: "b.*"}}})
		_, err = c.Frames.Next()
		require.NoError(t, err)
		require.Equal(t, []string{"identify", "hook ann opens a b.*"}, r.take())
		require.Equal(t, way == lane.HandOff, k.OnLane() == 1, "which way carries the connection")

		r.takeFromAnn(auth.Subscribe)
		conn, err = net.Dial("tcp", k.OpenPort())
		require.NoError(t, err)
		defer conn.Close()
		c = &lanetest.RawTCP{TB: t, Conn: conn, Frames: wire.NewCBORDecoder(conn)}
		c.Send(wire.ConnectRequest{Topics: []wire.Start{{Topic: "a"}}})
		refusal, err := c.Frames.Next()
		require.NoError(t, err)
		require.NotNil(t, refusal.End)
		require.Equal(t, wire.CodeForbidden, refusal.End.Code)
	})
}
