package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Every request gets a success or a documented problem, whatever it contains. No request
// causes an internal error or a long answer time.
func FuzzRequests(f *testing.F) {
	for _, seed := range [][4]string{
		{"POST", "/v1/topics/a/messages?ttl=1&key=k", "application/json", `{"a":[1,"x"]}`},
		{"POST", "/v1/topics/a/messages", "text/plain; charset=utf-8", "hello"},
		{"POST", "/v1/messages", "application/json", `[{"topic":"a","data":1,"id":"k"},{"topic":"b","type":"a/b","base64":"AA==","ttl":1}]`},
		{"POST", "/v1/messages", "application/x-ndjson", "{\"topic\":\"a\",\"type\":\"text/plain\",\"text\":\"x\",\"client\":\"c\"}\n{"},
		{"POST", "/v1/sessions", "application/json", `{"topics":["a@oldest","b@k3:17"],"ack":false}`},
		{"POST", "/v1/sessions", "application/json", `{"topics":null,"ack":null}`},
		{"GET", "/v1/poll?topic=a&topic=b@oldest&mode=multiple&format=json", "", ""},
		{"POST", "/v1/poll", "application/json", `{"topics":["a@k3:17"]}`},
		{"GET", "/v1/topics/a/messages?after=a@k3:1&limit=10", "", ""},
		{"GET", "/v1/topics?after=a&limit=1", "", ""},
		{"PATCH", "/v1/sessions/x", "application/json", `{"add":["a"],"remove":["b"]}`},
		{"GET", "/v1/sessions/x/poll?ack=0", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	api := newAPI(lanetest.NewParts(lanetest.Settings{Transport: transport.Config{PollTimeout: time.Millisecond, MaxOutputDelay: time.Millisecond}}))
	f.Fuzz(func(t *testing.T, method, target, contentType, body string) {
		if strings.Contains(target, "stream") || strings.Contains(target, "sse") {
			return // does not end by itself
		}
		r, ok := requestOf(method, target, body)
		if !ok {
			return
		}
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		if w.Code < 300 {
			return
		}
		var p wire.Problem
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		require.Equal(t, problem.Codes()[p.Code], w.Code)
		require.NotEqual(t, wire.CodeInternal, p.Code)
		require.Equal(t, w.Code, p.Status)
		require.LessOrEqual(t, w.Body.Len(), maxProblem)
	})
}

// requestOf returns a request as net/http's server would parse it. ok is false if net/http
// would reject it.
func requestOf(method, target, body string) (r *http.Request, ok bool) {
	if !strings.HasPrefix(target, "/") {
		return nil, false
	}
	r, err := http.NewRequest(method, "http://h"+target, strings.NewReader(body))
	return r, err == nil
}
