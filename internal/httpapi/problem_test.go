package httpapi

import (
	"bufio"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A proxy may change a path or a Host, so a refusal shows what arrived. It does not repeat the id
// of a session, which is a capability.
func TestARefusalShowsWhatArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		const paths = "GET /v1/openapi.yaml"
		for path, want := range map[string][2]string{
			"/topics":                       {`nothing is served at "/topics"`, paths},
			"/v1/nothing":                   {`nothing is served at "/v1/nothing"`, paths},
			"/push/v1/topics/a":             {`nothing is served at "/push/v1/topics/a"`, `remove the prefix "/push" from the path`},
			"/a/b/v1/sessions/secret/poll":  {`nothing is served at "/a/b/v1/sessions/…"`, `remove the prefix "/a/b"`},
			"/v1/sessions/secret/close/now": {`nothing is served at "/v1/sessions/…"`, paths},
			"/" + strings.Repeat("x", 9000): {`nothing is served at "/xxx`, paths},
		} {
			p := k.WantProblem(wire.CodeNotFound, "GET", path, "")
			require.Contains(t, p.Detail, want[0])
			require.Contains(t, p.Remedy, want[1])
			require.NotContains(t, p.Error(), "secret")
			require.Less(t, len(p.Error()), 1000, "it has a bound")
		}
		p := k.WantProblem(wire.CodeForbidden, "POST", "/v1/topics/a/messages", "1", "Origin: https://push.example:8443")
		require.Contains(t, p.Detail, `the request arrived with Origin "https://push.example:8443" and Host "`)
	})
}

func TestProblemsOfBadRequestsHaveARemedy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		const messages = "/v1/topics/a/messages"
		polls := "/v1/sessions/" + k.Open(`{"topics":["a"]}`).Session + "/poll"
		for i, c := range []struct {
			code               wire.Code
			method, path, body string
			headers            []string
		}{
			{wire.CodeNotFound, "GET", "/", "", nil},
			{wire.CodeNotFound, "GET", "/v2/topics", "", nil},
			{wire.CodeNotFound, "GET", "/v1//topics", "", nil},
			{wire.CodeMethodNotAllowed, "DELETE", "/v1/topics", "", nil},
			{wire.CodeMethodNotAllowed, "OPTIONS", messages, "", nil},

			{wire.CodeInvalidTopic, "POST", "/v1/topics/a..b/messages", "1", []string{lanetest.JSONType}},
			{wire.CodeNotFound, "POST", "/v1/topics/a%20b/messages", "1", []string{lanetest.JSONType}},
			{wire.CodeReservedTopic, "POST", "/v1/topics/_a/messages", "1", []string{lanetest.JSONType}},
			{wire.CodeInvalidBody, "POST", messages, "", []string{lanetest.JSONType}},
			{wire.CodeInvalidBody, "POST", messages, "{", []string{lanetest.JSONType}},
			{wire.CodeInvalidBody, "POST", messages, "1 2", []string{lanetest.JSONType}},
			{wire.CodeInvalidBody, "POST", messages, "\"\xff\"", []string{lanetest.JSONType}},
			{wire.CodeInvalidBody, "POST", messages, strings.Repeat("[", 65) + strings.Repeat("]", 65), []string{lanetest.JSONType}},
			{wire.CodeUnsupportedType, "POST", messages, "a=1", []string{"Content-Type: application/x-www-form-urlencoded"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: application/json; charset=latin1"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: nonsense/"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{lanetest.JSONType, "Content-Type: text/plain"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: text/plain, text/html"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: json"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: */*"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: text/*"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: text/plain; charset"}},
			{wire.CodeUnsupportedType, "POST", "/v1/messages", "[]", []string{"Content-Type: json"}},
			{wire.CodeUnsupportedType, "POST", "/v1/messages", "[]", []string{lanetest.JSONType, lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", messages + "?ttl=0", "1", []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", messages + "?ttl=1s", "1", []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", messages + "?key=%ff", "1", []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", messages + "?key=a&key=b", "1", []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", messages + "?tll=5", "1", []string{lanetest.JSONType}},
			{wire.CodeForbidden, "POST", messages, "1", []string{"Content-Type: text/plain", "Origin: http://evil.example"}},
			{wire.CodeForbidden, "POST", messages, "1", []string{"Content-Type: text/plain", "Sec-Fetch-Site: cross-site"}},
			{wire.CodeInvalidRequest, "POST", messages + "?a=%zz", "1", []string{lanetest.JSONType}},
			{wire.CodeMessageTooLarge, "POST", messages, `"` + strings.Repeat("x", 64<<10) + `"`, []string{lanetest.JSONType}},

			{wire.CodeTopicUnknown, "GET", "/v1/topics/nobody", "", nil},
			{wire.CodeTopicUnknown, "GET", "/v1/topics/nobody/messages", "", nil},
			{wire.CodeInvalidPosition, "GET", messages + "?after=7", "", nil},
			{wire.CodeInvalidPosition, "GET", messages + "?after=b@e:7", "", nil},
			{wire.CodeInvalidRequest, "GET", messages + "?limit=0", "", nil},
			{wire.CodeInvalidRequest, "GET", messages + "?limit=1001", "", nil},
			{wire.CodeInvalidRequest, "GET", "/v1/topics?limit=x", "", nil},

			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topic":["a"]}`, []string{lanetest.JSONType}},
			{wire.CodeInvalidPosition, "POST", "/v1/sessions", `{"topics":["a@7"]}`, []string{lanetest.JSONType}},
			{wire.CodeInvalidTopic, "POST", "/v1/sessions", `{"topics":["a..b"]}`, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":"a"}`, []string{lanetest.JSONType}},
			{wire.CodeInvalidTopic, "GET", "/v1/poll?topic=a..b", "", nil},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":["a","a@oldest"]}`, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{} {}`, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":["a"]}}}rubbish`, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":[null]}`, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":["a"],"Client":"c"}`, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "PATCH", strings.TrimSuffix(polls, "/poll"), `{"remove":[null]}`, []string{lanetest.JSONType}},
			{wire.CodeInvalidTopic, "PATCH", strings.TrimSuffix(polls, "/poll"), `{"remove":["not a topic"]}`, []string{lanetest.JSONType}},
			{wire.CodeTooManySubscriptions, "PATCH", strings.TrimSuffix(polls, "/poll"), `{"remove":["a"` + strings.Repeat(`,"a"`, 1000) + `]}`, []string{lanetest.JSONType}},
			{wire.CodeMessageTooLarge, "POST", "/v1/sessions", strings.Repeat(" ", 1<<20+1), []string{lanetest.JSONType}},

			{wire.CodeSessionUnknown, "GET", "/v1/sessions/none", "", nil},
			{wire.CodeSessionUnknown, "DELETE", "/v1/sessions/none", "", nil},
			{wire.CodeSessionUnknown, "GET", "/v1/sessions/none/poll?ack=0", "", nil},
			{wire.CodeInvalidRequest, "GET", polls, "", nil},
			{wire.CodeInvalidRequest, "GET", polls + "?ack=", "", nil},
			{wire.CodeInvalidRequest, "GET", polls + "?ack=0", "a body", nil},
			{wire.CodeInvalidRequest, "GET", polls + "?ack=-1", "", nil},
			{wire.CodeInvalidRequest, "GET", polls + "?ack=0&ack=0", "", nil},
			{wire.CodeInvalidRequest, "GET", polls + "?ack=0&mode=fast", "", nil},
			{wire.CodeAckBeyondSent, "GET", polls + "?ack=1", "", nil},
			{wire.CodeNotAcceptable, "GET", polls + "?ack=0", "", []string{"Accept: text/html, application/x-ndjson;q=0"}},
			{wire.CodeNotAcceptable, "GET", polls + "?ack=0&format=xml", "", nil},

			{wire.CodeInvalidRequest, "GET", "/v1/poll", "", nil},
			{wire.CodeInvalidPosition, "GET", "/v1/poll?topic=a@", "", nil},
			{wire.CodeInvalidRequest, "POST", "/v1/poll", `{"topics":[]}`, []string{lanetest.JSONType}},
		} {
			t.Log(i, c.method, c.path)
			k.WantProblem(c.code, c.method, c.path, c.body, c.headers...)
		}
	})
}

func TestTooManySubscriptionsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Session: session.Config{Subscriptions: 2}})
		k.WantProblem(wire.CodeTooManySubscriptions, "POST", "/v1/sessions", `{"topics":["a","b","c"]}`, lanetest.JSONType)
		k.WantProblem(wire.CodeTooManySubscriptions, "GET", "/v1/poll?topic=a&topic=b&topic=c", "")
		s := k.Open(`{"topics":["a","b"]}`).Session
		k.WantProblem(wire.CodeTooManySubscriptions, "PATCH", "/v1/sessions/"+s, `{"add":["c"]}`, lanetest.JSONType)
	})
}

func TestOverloadSpreadsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: broker.Config{MaxTopics: 1}})
		k.Open(`{"topics":["a"]}`)
		seen := map[int64]bool{}
		for range 20 {
			p := k.WantProblem(wire.CodeOverloaded, "POST", "/v1/topics/b/messages", "1", lanetest.JSONType)
			require.GreaterOrEqual(t, p.RetryAfterMS, int64(1000))
			require.LessOrEqual(t, p.RetryAfterMS, int64(2000))
			seen[p.RetryAfterMS] = true
		}
		require.Greater(t, len(seen), 5, "retries are spread")
	})
}

func TestADrainingDaemonRefusesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		s := k.Open(`{"topics":["a"]}`).Session
		why := problem.New(wire.CodeDraining, "elsewhere", "going away")
		why.RetryAfterMS = 10
		k.Parts.Sessions.BeginDrain(why).End(math.MaxInt)
		k.WantProblem(wire.CodeDraining, "POST", "/v1/topics/a/messages", "1", lanetest.JSONType)
		k.WantProblem(wire.CodeDraining, "POST", "/v1/sessions", `{}`, lanetest.JSONType)
		k.WantProblem(wire.CodeDraining, "GET", "/v1/sessions/"+s+"/poll?ack=0", "")
		k.WantProblem(wire.CodeDraining, "GET", "/v1/poll?topic=a", "")
	})
}

// A request times out when the rest of its body does not arrive.
func TestABodyTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		for path, status := range map[string]int{
			"/v1/topics/a/messages": http.StatusBadRequest, // reads the body
			"/nowhere":              http.StatusNotFound,   // does not read it
		} {
			conn, err := k.HTTP.Transport.(*http.Transport).DialContext(t.Context(), "", "")
			require.NoError(t, err)
			_, err = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf")
			require.NoError(t, err)
			begun := time.Now()
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			require.Equal(t, status, resp.StatusCode)
			require.Equal(t, lanetest.Defaults.RestTimeout, time.Since(begun))
			resp.Body.Close()
			conn.Close()
		}
	})
}

// The client does not see an internal error. The log has it, with the id of the request.
func TestAnInternalErrorIsLoggedWithTheRequestID(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	p := lanetest.NewParts(lanetest.Settings{})
	defer p.Broker.Close()
	p.Log = zap.New(core)
	api, answer := newAPI(p), httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/v1/topics", nil)
	w := api.response(answer, r)
	w.Header().Set("X-Request-Id", "r1")
	api.fail(w, r, errors.New("the disk melted"))
	require.Equal(t, http.StatusInternalServerError, answer.Code)
	require.NotContains(t, answer.Body.String(), "melted")
	require.Equal(t, map[string]any{"method": "GET", "request_id": "r1", "error": "the disk melted"}, logged.All()[0].ContextMap())
}

// Every answer about a subscription counts the topics of its patterns that do not fit.
func TestAnswersCountTopicsThatDoNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Session: session.Config{PatternBytes: broker.BytesOf("a.1")}})
		for _, topic := range []string{"a.1", "a.2", "a.3"} {
			k.wantOK("/v1/topics/"+topic+"/messages", "1", lanetest.JSONType)
		}
		wantCount := func(status int, method, path, body string, headers ...string) {
			t.Helper()
			got, text := k.Get(method, path, body, headers...)
			require.Equal(t, status, got, text)
			require.Contains(t, text, `"unfollowed":2`, "%s %s", method, path)
		}
		wantCount(201, "POST", "/v1/sessions", `{"topics":["a.*"]}`, lanetest.JSONType)
		s := k.Open(`{"topics":[]}`).Session
		wantCount(200, "PATCH", "/v1/sessions/"+s, `{"add":["a.*"]}`, lanetest.JSONType)
		wantCount(200, "GET", "/v1/sessions/"+s, "")
		wantCount(200, "GET", "/v1/poll?topic=a.*@oldest", "")
		refused := k.WantProblem(wire.CodeTooManySubscriptions, "GET", "/v1/poll?topic=a.*&mode=single", "")
		require.Contains(t, refused.Remedy, "mode=batch")
		e := k.eventSource(queryOf(referring, wire.Start{Topic: "a.*"}))
		e.ids = referring
		ev, err := e.next()
		require.NoError(t, err)
		require.Equal(t, 2, content(e, ev).Hello.Unfollowed)
		e.leave()
		e.cut()
	})
}
