package httpapi

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// wantProblem sends a request and requires a complete problem with this code, in JSON.
func (k *kit) wantProblem(code wire.Code, method, path, body string, headers ...string) wire.Problem {
	k.Helper()
	resp := k.do(method, path, body, headers...)
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

func (k *kit) open(body string, headers ...string) wire.SessionOpened {
	k.Helper()
	status, text := k.get("POST", "/v1/sessions", body, append(headers, jsonType)...)
	require.Equal(k, http.StatusCreated, status, text)
	var opened wire.SessionOpened
	require.NoError(k, json.Unmarshal([]byte(text), &opened))
	return opened
}

func TestProblemsOfBadRequestsHaveARemedy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{})
		const messages = "/v1/topics/a/messages"
		polls := "/v1/sessions/" + k.open(`{"topics":["a"]}`).Session + "/poll"
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

			{wire.CodeInvalidTopic, "POST", "/v1/topics/a..b/messages", "1", []string{jsonType}},
			{wire.CodeNotFound, "POST", "/v1/topics/a%20b/messages", "1", []string{jsonType}},
			{wire.CodeReservedTopic, "POST", "/v1/topics/_a/messages", "1", []string{jsonType}},
			{wire.CodeInvalidBody, "POST", messages, "", []string{jsonType}},
			{wire.CodeInvalidBody, "POST", messages, "{", []string{jsonType}},
			{wire.CodeInvalidBody, "POST", messages, "1 2", []string{jsonType}},
			{wire.CodeInvalidBody, "POST", messages, "\"\xff\"", []string{jsonType}},
			{wire.CodeInvalidBody, "POST", messages, strings.Repeat("[", 65) + strings.Repeat("]", 65), []string{jsonType}},
			{wire.CodeUnsupportedType, "POST", messages, "a=1", []string{"Content-Type: application/x-www-form-urlencoded"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: application/json; charset=latin1"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: nonsense/"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{jsonType, "Content-Type: text/plain"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: text/plain, text/html"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: json"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: */*"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: text/*"}},
			{wire.CodeUnsupportedType, "POST", messages, "1", []string{"Content-Type: text/plain; charset"}},
			{wire.CodeUnsupportedType, "POST", "/v1/messages", "[]", []string{"Content-Type: json"}},
			{wire.CodeUnsupportedType, "POST", "/v1/messages", "[]", []string{jsonType, jsonType}},
			{wire.CodeInvalidRequest, "POST", messages + "?ttl=0", "1", []string{jsonType}},
			{wire.CodeInvalidRequest, "POST", messages + "?ttl=1s", "1", []string{jsonType}},
			{wire.CodeInvalidRequest, "POST", messages + "?key=%ff", "1", []string{jsonType}},
			{wire.CodeInvalidRequest, "POST", messages + "?key=a&key=b", "1", []string{jsonType}},
			{wire.CodeInvalidRequest, "POST", messages + "?tll=5", "1", []string{jsonType}},
			{wire.CodeForbidden, "POST", messages, "1", []string{"Content-Type: text/plain", "Origin: http://evil.example"}},
			{wire.CodeForbidden, "POST", messages, "1", []string{"Content-Type: text/plain", "Sec-Fetch-Site: cross-site"}},
			{wire.CodeInvalidRequest, "POST", messages + "?a=%zz", "1", []string{jsonType}},
			{wire.CodeMessageTooLarge, "POST", messages, `"` + strings.Repeat("x", 64<<10) + `"`, []string{jsonType}},

			{wire.CodeTopicUnknown, "GET", "/v1/topics/nobody", "", nil},
			{wire.CodeTopicUnknown, "GET", "/v1/topics/nobody/messages", "", nil},
			{wire.CodeInvalidPosition, "GET", messages + "?after=7", "", nil},
			{wire.CodeInvalidPosition, "GET", messages + "?after=b@e:7", "", nil},
			{wire.CodeInvalidRequest, "GET", messages + "?limit=0", "", nil},
			{wire.CodeInvalidRequest, "GET", messages + "?limit=1001", "", nil},
			{wire.CodeInvalidRequest, "GET", "/v1/topics?limit=x", "", nil},

			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topic":["a"]}`, []string{jsonType}},
			{wire.CodeInvalidPosition, "POST", "/v1/sessions", `{"topics":["a@7"]}`, []string{jsonType}},
			{wire.CodeInvalidTopic, "POST", "/v1/sessions", `{"topics":["a..b"]}`, []string{jsonType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":"a"}`, []string{jsonType}},
			{wire.CodeInvalidTopic, "GET", "/v1/poll?topic=a..b", "", nil},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":["a","a@oldest"]}`, []string{jsonType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{} {}`, []string{jsonType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":["a"]}}}rubbish`, []string{jsonType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":[null]}`, []string{jsonType}},
			{wire.CodeInvalidRequest, "POST", "/v1/sessions", `{"topics":["a"],"Client":"c"}`, []string{jsonType}},
			{wire.CodeInvalidRequest, "PATCH", strings.TrimSuffix(polls, "/poll"), `{"remove":[null]}`, []string{jsonType}},
			{wire.CodeInvalidTopic, "PATCH", strings.TrimSuffix(polls, "/poll"), `{"remove":["not a topic"]}`, []string{jsonType}},
			{wire.CodeTooManySubscriptions, "PATCH", strings.TrimSuffix(polls, "/poll"), `{"remove":["a"` + strings.Repeat(`,"a"`, 1000) + `]}`, []string{jsonType}},
			{wire.CodeMessageTooLarge, "POST", "/v1/sessions", strings.Repeat(" ", 1<<20+1), []string{jsonType}},

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
			{wire.CodeInvalidRequest, "POST", "/v1/poll", `{"topics":[]}`, []string{jsonType}},
		} {
			t.Log(i, c.method, c.path)
			k.wantProblem(c.code, c.method, c.path, c.body, c.headers...)
		}
	})
}

func TestTooManySubscriptionsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{session: session.Config{Subscriptions: 2}})
		k.wantProblem(wire.CodeTooManySubscriptions, "POST", "/v1/sessions", `{"topics":["a","b","c"]}`, jsonType)
		k.wantProblem(wire.CodeTooManySubscriptions, "GET", "/v1/poll?topic=a&topic=b&topic=c", "")
		s := k.open(`{"topics":["a","b"]}`).Session
		k.wantProblem(wire.CodeTooManySubscriptions, "PATCH", "/v1/sessions/"+s, `{"add":["c"]}`, jsonType)
	})
}

func TestOverloadSpreadsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{broker: broker.Config{MaxTopics: 1}})
		k.open(`{"topics":["a"]}`)
		seen := map[int64]bool{}
		for range 20 {
			p := k.wantProblem(wire.CodeOverloaded, "POST", "/v1/topics/b/messages", "1", jsonType)
			require.GreaterOrEqual(t, p.RetryAfterMS, int64(1000))
			require.LessOrEqual(t, p.RetryAfterMS, int64(2000))
			seen[p.RetryAfterMS] = true
		}
		require.Greater(t, len(seen), 5, "retries are spread")
	})
}

func TestADrainingDaemonRefusesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{})
		s := k.open(`{"topics":["a"]}`).Session
		why := problem.New(wire.CodeDraining, "elsewhere", "going away")
		why.RetryAfterMS = 10
		k.cfg.Sessions.BeginDrain(why).End(math.MaxInt)
		k.wantProblem(wire.CodeDraining, "POST", "/v1/topics/a/messages", "1", jsonType)
		k.wantProblem(wire.CodeDraining, "POST", "/v1/sessions", `{}`, jsonType)
		k.wantProblem(wire.CodeDraining, "GET", "/v1/sessions/"+s+"/poll?ack=0", "")
		k.wantProblem(wire.CodeDraining, "GET", "/v1/poll?topic=a", "")
	})
}

// A request times out when the rest of its body does not arrive.
func TestABodyTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{})
		for path, status := range map[string]int{
			"/v1/topics/a/messages": http.StatusBadRequest, // reads the body
			"/nowhere":              http.StatusNotFound,   // does not read it
		} {
			conn, err := k.client.Transport.(*http.Transport).DialContext(t.Context(), "", "")
			require.NoError(t, err)
			_, err = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf")
			require.NoError(t, err)
			begun := time.Now()
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			require.Equal(t, status, resp.StatusCode)
			require.Equal(t, defaults.RestTimeout, time.Since(begun))
			resp.Body.Close()
			conn.Close()
		}
	})
}

// The client does not see an internal error. The log has it, with the id of the request.
func TestAnInternalErrorIsLoggedWithTheRequestID(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	p := newParts(settings{})
	defer p.Broker.Close()
	p.Log = zap.New(core)
	api, answer := p.newAPI(), httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/v1/topics", nil)
	w := api.response(answer, r)
	w.Header().Set("X-Request-Id", "r1")
	api.fail(w, r, errors.New("the disk melted"))
	require.Equal(t, http.StatusInternalServerError, answer.Code)
	require.NotContains(t, answer.Body.String(), "melted")
	require.Equal(t, map[string]any{"method": "GET", "request_id": "r1", "error": "the disk melted"}, logged.All()[0].ContextMap())
}
