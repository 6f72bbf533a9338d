package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A reader sends requests to a daemon and validates the answers against the OpenAPI
// document.
type reader struct {
	*testing.T
	doc     *openapi3.T
	routes  routers.Router
	cfg     lanetest.Parts
	daemon  http.Handler
	asked   map[string]bool // operations that succeeded
	session string
}

func newReader(t *testing.T, s lanetest.Settings) *reader {
	s.Broker.Rules = []broker.Rule{{Name: "lobby", Pattern: "lobby.*", Presence: true}}
	cfg := withRevocations(t, s)
	cfg.Hosts = cors.NewHosts([]string{"example.com"}, false, zap.NewNop()) // as requests of httptest
	both := http.NewServeMux()
	both.Handle("/v1/", newAPI(cfg))
	both.Handle("/", NewAdmin(adminOf(cfg, "")))
	doc := document(t)
	router, err := gorillamux.NewRouter(doc)
	require.NoError(t, err)
	return &reader{T: t, doc: doc, routes: router, cfg: cfg, daemon: both, asked: map[string]bool{}}
}

// ask sends a request and requires this status and an answer that fits the document.
func (r *reader) ask(status int, method, path, body string, headers ...string) string {
	r.Helper()
	path = strings.ReplaceAll(path, "SESSION", r.session)
	route, vars, err := r.routes.FindRoute(newRequest(method, path, body, headers))
	require.NoError(r, err, "%s %s", method, path)
	w := httptest.NewRecorder()
	r.daemon.ServeHTTP(w, newRequest(method, path, body, headers))
	require.Equal(r, status, w.Code, "%s %s: %s", method, path, w.Body)
	r.judge(newRequest(method, path, body, headers), route, vars, w)
	if status < 300 {
		r.asked[method+" "+route.Path] = true
	}
	return w.Body.String()
}

func newRequest(method, path, body string, headers []string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	if body != "" {
		r = httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
		if name == "Host" {
			r.Host = value
		}
	}
	return r
}

// judge validates an answer against the document. It also validates the request, if it
// succeeded.
func (r *reader) judge(request *http.Request, route *routers.Route, vars map[string]string, w *httptest.ResponseRecorder) {
	r.Helper()
	lines := w.Header().Get("Content-Type") == frame.NDJSON.ContentType()
	in := &openapi3filter.RequestValidationInput{
		Request: request, PathParams: vars, Route: route,
		Options: &openapi3filter.Options{ExcludeRequestBody: request.Header.Get("Content-Type") != "application/json"},
	}
	if w.Code < 300 {
		require.NoError(r, openapi3filter.ValidateRequest(context.Background(), in))
	}
	unread := lines || request.Method == http.MethodHead || slices.Contains([]string{"application/cbor-seq", "text/javascript; charset=utf-8", "text/html; charset=utf-8"}, w.Header().Get("Content-Type"))
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: w.Code, Header: w.Header(),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: unread},
	}
	out.SetBodyBytes(w.Body.Bytes())
	require.NoError(r, openapi3filter.ValidateResponse(context.Background(), out), "%s %s", request.Method, request.URL)
	if lines && request.Method != http.MethodHead {
		line := route.Operation.Responses.Status(w.Code).Value.Content[frame.NDJSON.ContentType()].Schema.Value
		for text := range strings.Lines(w.Body.String()) {
			fits(r.T, line, text)
		}
	}
}

// open opens the session that SESSION stands for in paths.
func (r *reader) open(body string, headers ...string) {
	r.Helper()
	var opened wire.SessionOpened
	require.NoError(r, json.Unmarshal([]byte(r.ask(201, "POST", "/v1/sessions", body, headers...)), &opened))
	r.session = opened.Session
}

func TestTheDaemonAnswersAsTheOpenAPIDocumentSays(t *testing.T) {
	r := newReader(t, lanetest.Settings{})
	messages := "/v1/topics/a.b/messages"
	r.ask(200, "POST", messages, `{"n":1}`)
	r.ask(200, "POST", messages+"?ttl=60&key=k", "two", "Content-Type: text/plain")
	r.ask(200, "POST", messages, "\x00", "Content-Type: image/png")
	once := "Idempotency-Key: \"once\""
	require.Equal(t, r.ask(200, "POST", messages+"?client=me", `1`, once), r.ask(200, "POST", messages+"?client=me", `1`, once))
	r.ask(422, "POST", messages, `2`, once)
	r.ask(400, "POST", messages, `{`)
	r.ask(400, "POST", messages+"?tll=1", `1`)
	r.ask(403, "POST", "/v1/topics/_own/messages", `1`)
	r.ask(403, "POST", messages, `1`, "Origin: https://elsewhere.example")
	r.ask(413, "POST", messages, `"`+strings.Repeat("x", 65<<10)+`"`)
	r.ask(415, "POST", messages, `a=b`, "Content-Type: application/x-www-form-urlencoded")

	many := `{"topic":"a.b","data":{"n":2},"key":"k","client":"me","id":"each","ttl":60}`
	r.ask(200, "POST", "/v1/messages", "["+many+`,{"topic":"_own","type":"text/plain","text":"x"}]`)
	r.ask(200, "POST", "/v1/messages", many+"\n"+`{"topic":"a.b","type":"image/png","base64":"AA=="}`, "Content-Type: application/x-ndjson")
	r.ask(200, "POST", messages, "\xa1\x61n\x01", "Content-Type: application/cbor")
	r.ask(400, "POST", messages, "\xa1\x61n", "Content-Type: application/cbor")
	r.ask(200, "POST", "/v1/messages", "\xa2\x65topic\x63a.b\x64data\x01", "Content-Type: application/cbor-seq")
	r.ask(400, "POST", "/v1/messages", `{}`)
	r.ask(415, "POST", "/v1/messages", `1`, "Content-Type: text/csv")

	require.Contains(t, r.ask(200, "GET", messages+"?limit=10&format=json", ""), `"base64":"AA=="`)
	r.ask(200, "GET", messages+"?after=a.b@k3:17", "")
	r.ask(406, "GET", messages, "", "Accept: text/html")
	r.ask(200, "GET", "/v1/topics?limit=1", "")
	r.ask(400, "GET", "/v1/topics?limit=0", "")
	r.ask(200, "GET", "/v1/topics/a.b", "")
	r.ask(404, "GET", "/v1/topics/c", "")

	r.ask(200, "POST", "/v1/subjects", fmt.Sprintf(`{"subject":"eve","forbid":["a.b","chat.>"],"until_ms":%d,"reason":"spam"}`, time.Now().Add(time.Hour).UnixMilli()))
	r.ask(200, "POST", "/v1/subjects", `{"subject":"eve","forbid":[]}`)
	r.ask(200, "POST", "/v1/subjects", `{"subject":"eve","end":true,"reason":"bye"}`)
	r.ask(400, "POST", "/v1/subjects", `{"subject":"eve"}`)
	r.ask(403, "POST", "/v1/subjects", `{"subject":"eve","forbid":["_own"],"until_ms":4102444800000}`)

	r.open(`{"topics":["lobby.a"],"client":"me"}`)
	require.Contains(t, r.ask(200, "GET", "/v1/topics/lobby.a/presence", ""), `"client":"me"`)
	r.ask(404, "GET", "/v1/topics/a.b/presence", "")
	r.ask(400, "GET", "/v1/topics/a..b/presence", "")

	r.open(`{"topics":["a.b@oldest","c"]}`)
	r.ask(400, "POST", "/v1/sessions", `{"topics":["a..b"]}`)
	for _, path := range []string{
		messages + "?limit=10", "/v1/topics?limit=1", "/v1/topics/a.b", "/v1/topics/lobby.a/presence", "/v1/sessions/SESSION", "/v1/openapi.yaml",
		"/", "/openapi.yaml", "/livez", "/readyz", "/metrics", "/sessions?limit=1", "/loglevel",
	} {
		r.ask(200, "HEAD", path, "")
	}
	r.ask(404, "HEAD", "/v1/topics/nobodys", "")
	r.ask(400, "HEAD", "/sessions?sort=size", "")
	r.ask(200, "GET", "/v1/sessions/SESSION", "")
	r.ask(200, "PATCH", "/v1/sessions/SESSION", `{"add":["d"],"remove":["c"]}`)
	require.Contains(t, r.ask(200, "GET", "/v1/sessions/SESSION/poll?ack=0&mode=batch", ""), `"n":1`)
	r.ask(200, "GET", "/v1/sessions/SESSION/poll?ack=1&r=1", "")
	r.ask(409, "GET", "/v1/sessions/SESSION/poll?ack=0", "")
	r.ask(409, "GET", "/v1/sse?session=SESSION&ack=0", "")
	r.ask(400, "GET", "/v1/sessions/SESSION/poll?ack=17", "")
	r.ask(200, "GET", "/sessions?sort=idle&limit=1", "")
	r.ask(200, "DELETE", "/v1/topics/a.b", "")
	require.Contains(t, r.ask(200, "GET", "/v1/sessions/SESSION/poll?ack=3", ""), `"deleted"`)
	r.ask(404, "DELETE", "/v1/topics/nobodys", "")
	r.ask(200, "PATCH", "/v1/sessions/SESSION", `{"remove":["d"]}`)
	r.ask(204, "DELETE", "/v1/sessions/SESSION", "")
	r.ask(410, "GET", "/v1/sessions/SESSION/poll?ack=1", "")
	r.ask(204, "GET", "/v1/sse?topic=a.*&client=me&last_event_id=~SESSION:0", "")
	r.ask(204, "GET", "/v1/sse?topic=a.*", "", "Last-Event-ID: ~"+r.session+":0")
	r.ask(400, "GET", "/v1/sse?topic=a.b", "", "Last-Event-ID: 17")
	r.ask(204, "GET", "/v1/sse?session=SESSION&ack=0&heartbeat=event", "")
	r.ask(404, "GET", "/v1/sse?session=nobody&ack=0", "")
	r.ask(400, "GET", "/v1/sse?topic=a.b&heartbeat=loud", "")
	r.ask(404, "GET", "/v1/sessions/nobody", "")
	r.open(`{"topics":[{"topic":"a.*","max_rate":"5/s"},"rest.>@oldest"],"ack":false,"client":"me","echo":false}`)
	r.ask(200, "GET", "/v1/sessions/SESSION", "")
	r.open(`{}`)
	r.ask(204, "POST", "/v1/sessions/SESSION/close", "")

	r.ask(200, "POST", messages, `3`)
	require.Contains(t, r.ask(200, "GET", "/v1/poll?topic=a.*@oldest&topic=c&client=me&echo=false", ""), `{"hello":`)
	require.Contains(t, r.ask(200, "GET", "/v1/poll?topic=a.b@k3:17", ""), `{"gap":`)
	r.ask(200, "POST", "/v1/poll?mode=single", `{"topics":["a.b@oldest"]}`)
	r.ask(400, "GET", "/v1/poll?topic=a.b&mode=all", "")

	r.ask(400, "GET", "/v1/ws?topic=a.b", "")
	r.asked["GET /v1/ws"] = true // a recorder cannot upgrade; TestAWebSocketDeliversTheSame covers the rest

	for _, path := range []string{"/v1/openapi.yaml", "/openapi.yaml", "/", "/livez", "/readyz", "/metrics"} {
		r.ask(200, "GET", path, "")
	}
	for _, module := range []string{"/v1/client.js", "/v1/live.js", "/v1/share.js", "/v1/outbox.js", "/v1/react.js"} {
		r.ask(200, "GET", module, "")
		r.ask(304, "GET", module, "", "If-None-Match: *")
		r.ask(200, "HEAD", module, "")
	}
	r.ask(400, "GET", "/sessions?sort=size", "")
	r.ask(200, "GET", "/loglevel", "")
	r.ask(401, "PUT", "/loglevel", `{"level":"debug"}`)
	r.ask(403, "PUT", "/loglevel", `{"level":"debug"}`, "Origin: https://elsewhere.example")
	operator := "Authorization: Bearer " + operatorsKey
	r.ask(200, "PUT", "/loglevel", `{"level":"debug"}`, operator)
	r.ask(400, "PUT", "/loglevel", `{"level":"loud"}`, operator)
	require.JSONEq(t, `{"level":"warn"}`, r.ask(200, "PUT", "/loglevel", "level=warn", operator, "Content-Type: application/x-www-form-urlencoded"))
	r.ask(200, "POST", "/revocations", `{"subject":"ann"}`, operator)
	r.ask(200, "POST", "/revocations", `{"token_id":"t-1"}`, operator)
	r.ask(404, "POST", "/revocations", `{"session":1234}`, operator)
	r.ask(400, "POST", "/revocations", `{}`, operator)
	r.ask(401, "POST", "/revocations", `{"subject":"ann"}`)
	r.ask(413, "POST", "/revocations", `{"subject":"`+strings.Repeat("x", maxRevokeBytes)+`"}`, operator)
	r.ask(200, "GET", "/revocations?limit=10", "", operator)
	r.ask(200, "HEAD", "/revocations?limit=10", "", operator)
	r.ask(401, "HEAD", "/revocations", "")
	r.ask(400, "GET", "/revocations?limit=0", "", operator)
	r.ask(401, "GET", "/revocations", "")
	for at := range operations(r.doc) {
		require.True(t, r.asked[at], "no test asks %s", at)
	}
}

// Refusals for a reason that many routes share.
func TestTheOpenAPIDocumentHasTheRefusalsOfEachRoute(t *testing.T) {
	r := newReader(t, lanetest.Settings{Authority: everyName{}, Limits: limit.Config{Calls: 1, Wait: time.Nanosecond}})
	r.open(`{"topics":["a"]}`, "Authorization: ann")
	toPages := []string{"GET /v1/topics/{topic}/presence", "GET /v1/poll", "GET /v1/sse"} // not to those of other origins
	for at := range operations(r.doc) {
		method, path, _ := strings.Cut(at, " ")
		isPublic, reads := strings.HasPrefix(path, "/v1/"), method == "GET" || method == "HEAD"
		ofToken := slices.Contains(waitingPaths, strings.TrimPrefix(path, "/v1")) && method == "GET"
		path = strings.NewReplacer("{topic}", "lobby.a", "{id}", "SESSION").Replace(path)
		r.ask(421, method, path, "", "Host: elsewhere.example")
		if !isPublic || !reads || slices.Contains(toPages, at) {
			r.ask(403, method, path, "", "Origin: https://elsewhere.example")
		}
		if isPublic && !ofToken {
			r.ask(400, method, path+"?token=t", "")
		}
	}
	r.ask(404, "POST", "/v1/topics/a/messages?session=nobody", "1")
	for _, c := range []struct{ method, path string }{
		{"GET", ""}, {"PATCH", ""}, {"DELETE", ""}, {"POST", "/close"}, {"GET", "/poll?ack=0"},
	} {
		body := ""
		if c.method == "PATCH" {
			body = `{"add":["b"]}`
		}
		r.ask(403, c.method, "/v1/sessions/SESSION"+c.path, body, "Authorization: bob")
	}
	r.ask(403, "GET", "/v1/sse?session=SESSION&ack=0", "", "Authorization: bob")

	held, err := r.cfg.Limiter.Begin(t.Context(), limit.Who{}, false)
	require.NoError(t, err)
	defer held.End()
	read, err := r.cfg.Limiter.Begin(t.Context(), limit.Who{}, true)
	require.NoError(t, err)
	defer read.End()
	for _, c := range [][3]string{
		{"GET", "/v1/topics"}, {"GET", "/v1/topics/lobby.a"}, {"DELETE", "/v1/topics/lobby.a"}, {"GET", "/v1/topics/lobby.a/presence"},
		{"GET", "/v1/topics/lobby.a/messages"}, {"POST", "/v1/topics/lobby.a/messages", "1"}, {"POST", "/v1/messages", `[{"topic":"a","data":1}]`},
		{"GET", "/v1/sessions/SESSION"}, {"DELETE", "/v1/sessions/SESSION"}, {"POST", "/v1/sessions/SESSION/close"}, {"GET", "/v1/openapi.yaml"},
	} {
		r.ask(503, c[0], c[1], c[2], "Authorization: ann")
	}
}

func TestTheOpenAPIDocumentHasTheRefusalOfManyLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader(t, lanetest.Settings{})
		for range 5 {
			r.ask(200, "GET", "/sessions", "")
		}
		r.ask(429, "GET", "/sessions", "")
	})
}

func TestTheOpenAPIDocumentHasTheRefusalOfWrongCredentials(t *testing.T) {
	r := newReader(t, lanetest.Settings{Authority: secretKeeper{}})
	r.open(`{"topics":["a"]}`)
	for at := range operations(r.doc) {
		method, path, _ := strings.Cut(at, " ")
		if path = strings.NewReplacer("{topic}", "lobby.a", "{id}", "SESSION").Replace(path); path == "/v1/ws" || !strings.HasPrefix(path, "/v1/") || strings.HasSuffix(path, ".js") {
			continue // an upgrade is checked first; operators have a key; everyone may load a module
		}
		r.ask(401, method, path, "", "Authorization: bad")
	}
}
