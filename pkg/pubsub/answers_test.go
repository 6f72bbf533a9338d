package pubsub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/daemon"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An answerRow is a row of pkg/wire/testdata/answers.json. The README there explains it.
type answerRow struct {
	Name         string
	Faults       []fault
	Token        string
	Expect, Code string
	Reason       string
	Rush         bool
	Transports   []string
}

type fault struct {
	On     string
	Answer struct {
		Status               int
		Type, Body, Location string
		Problem              wire.Code
		RetryAfterMS         int64 `json:"retry_after_ms"`
		Cut                  string
		Repeat               bool
	}
	Times int // 0: until the proxy heals
}

// A faultyProxy forwards requests to a daemon, except those that its faults name.
type faultyProxy struct {
	*httptest.Server
	daemon *url.URL
	plain  *httputil.ReverseProxy

	mu     sync.Mutex
	faults []fault
	left   []int          // of each fault's times
	came   map[string]int // requests of each kind
	cached []byte         // the answer that is repeated
}

func newFaultyProxy(t *testing.T, to *url.URL, faults []fault) *faultyProxy {
	p := &faultyProxy{daemon: to, plain: httputil.NewSingleHostReverseProxy(to), faults: faults, came: map[string]int{}}
	for _, f := range faults {
		p.left = append(p.left, f.Times)
	}
	p.plain.FlushInterval = -1
	p.plain.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	p.Server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
	})
	return p
}

// kindOf returns what the table calls a request.
func kindOf(r *http.Request) string {
	switch {
	case r.URL.Path == "/v1/sessions", r.URL.Path == "/v1/ws":
		return "open"
	case strings.HasSuffix(r.URL.Path, "/poll"):
		return "poll"
	case strings.HasSuffix(r.URL.Path, "/messages"):
		return "publish"
	case r.Method == http.MethodPatch:
		return "change"
	}
	return r.Method
}

func (p *faultyProxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = nil
}

func (p *faultyProxy) count(kind string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.came[kind]
}

// faultOf returns the fault that answers a request, if one does.
func (p *faultyProxy) faultOf(kind string) (fault, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.came[kind]++
	for i, f := range p.faults {
		early := f.On == "open" && p.faults[0].On == "poll" && p.came["poll"] == 0 // a session is open before it is polled
		if f.On != kind || early || f.Times > 0 && p.left[i] == 0 {
			continue
		}
		p.left[i]--
		return f, true
	}
	return fault{}, false
}

func (p *faultyProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, faulty := p.faultOf(kindOf(r))
	switch a := f.Answer; {
	case !faulty:
		p.plain.ServeHTTP(w, r)
	case a.Repeat:
		p.repeat(w, r)
	case a.Cut == "request":
		panic(http.ErrAbortHandler)
	case a.Cut != "":
		p.cut(w, r, a.Cut == "body")
	case a.Problem != "":
		problem := wire.Problem{Title: http.StatusText(a.Status), Status: a.Status, Code: a.Problem, RetryAfterMS: a.RetryAfterMS}
		refuse(w, &problem)
	default:
		w.Header().Set("Content-Type", a.Type)
		if a.Location != "" {
			w.Header().Set("Location", a.Location)
		}
		w.WriteHeader(a.Status)
		_, _ = io.WriteString(w, a.Body)
	}
}

// ask sends a request to the daemon.
func (p *faultyProxy) ask(r *http.Request) *http.Response {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = p.daemon.Scheme, p.daemon.Host, ""
	resp, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return resp
}

// cut closes the connection after the daemon has answered, and with half after half of the
// answer; of one that does not end, after half of its beginning.
func (p *faultyProxy) cut(w http.ResponseWriter, r *http.Request, half bool) {
	resp := p.ask(r)
	defer resp.Body.Close()
	if !half {
		panic(http.ErrAbortHandler)
	}
	body := make([]byte, 4096)
	if isStream(r) {
		n, _ := resp.Body.Read(body)
		body = body[:n]
	} else {
		body, _ = io.ReadAll(resp.Body)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	body = body[:len(body)/2]
	for name := range resp.Header {
		if name != "Content-Length" {
			w.Header().Set(name, resp.Header.Get(name))
		}
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		conn, _, _ := http.NewResponseController(w).Hijack()
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\n")
		_ = w.Header().Write(conn)
		_, _ = conn.Write(append([]byte("\r\n"), body...))
		return
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(body)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// repeat answers as a cache that has the first answer.
func (p *faultyProxy) repeat(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cached == nil {
		resp := p.ask(r)
		defer resp.Body.Close()
		p.cached, _ = io.ReadAll(resp.Body)
	}
	w.Header().Set("Content-Type", wire.NDJSONType)
	_, _ = w.Write(p.cached)
}

// startRealDaemon runs a daemon for a test.
func startRealDaemon(t *testing.T, change func(*config.Config)) *daemon.Daemon {
	cfg := config.Default()
	cfg.Listen = config.Listen{Public: "127.0.0.1:0", Admin: "127.0.0.1:0", TCP: "127.0.0.1:0"}
	cfg.DrainWindow = 10 * time.Millisecond
	if change != nil {
		change(&cfg)
	}
	d, err := daemon.New(cfg, zap.NewNop(), metrics.New("test"))
	require.NoError(t, err)
	require.NoError(t, d.Listen())
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return d
}

// Rows about a poll have no equivalent with WebSocket, whose session ends with its connection.
func (r *answerRow) isFor(t Transport) bool {
	names := map[Transport]string{LongPoll: "poll", HTTPStream: "stream", WebSocket: "websocket"}
	if t == WebSocket && r.Faults[0].On == "poll" {
		return false
	}
	return len(r.Transports) == 0 || slices.Contains(r.Transports, names[t])
}

// What a client does with each answer: the table of all clients, through a proxy to a daemon.
func TestAnswers(t *testing.T) {
	text, err := os.ReadFile("../wire/testdata/answers.json")
	require.NoError(t, err)
	var rows []answerRow
	require.NoError(t, json.Unmarshal(text, &rows))
	d := startRealDaemon(t, nil)
	to := &url.URL{Scheme: "http", Host: d.PublicAddr()}
	run := 0
	for i, row := range rows {
		topic := func() string { run++; return fmt.Sprintf("answers.%d", run) }
		if strings.HasPrefix(row.Name, "publish") {
			t.Run(row.Name, func(t *testing.T) { row.publishes(t, newRowStage(t, to, &row, topic())) })
			continue
		}
		over := slices.DeleteFunc([]Transport{LongPoll, HTTPStream, WebSocket}, func(transport Transport) bool { return !row.isFor(transport) })
		if !exhaustive.On() { // each row over one of them
			over = over[i%len(over):][:1]
		}
		for _, transport := range over {
			t.Run(row.Name+"/"+string(transport), func(t *testing.T) {
				row.subscribes(t, newRowStage(t, to, &row, topic()), transport)
			})
		}
	}
	require.Greater(t, run, 190/exhaustive.Step(3), "rows that ran")
}

// A rowStage is what a row plays on: a client behind the proxy, and one beside it.
type rowStage struct {
	proxy          *faultyProxy
	behind, beside *Client
	topic          string
	retried        waits
}

func newRowStage(t *testing.T, to *url.URL, row *answerRow, topic string) *rowStage {
	s := &rowStage{proxy: newFaultyProxy(t, to, row.Faults), topic: topic}
	options := []Option{WithMaxBackoff(10 * time.Millisecond)}
	switch row.Token {
	case "static":
		options = append(options, WithToken("t"))
	case "fresh":
		var given atomic.Int64
		options = append(options, WithTokenSource(func(context.Context) (string, error) {
			return fmt.Sprintf("t%d", given.Add(1)), nil
		}))
	}
	var err error
	s.behind, err = New(s.proxy.URL, options...)
	require.NoError(t, err)
	s.beside, err = New(to.String())
	require.NoError(t, err)
	t.Cleanup(s.behind.Close)
	t.Cleanup(s.beside.Close)
	return s
}

func codeOf(err error) string {
	if p := (*wire.Problem)(nil); errors.As(err, &p) {
		return string(p.Code)
	}
	if e := (*UnexpectedAnswerError)(nil); errors.As(err, &e) {
		return "unexpected_answer"
	}
	return ""
}

func (r *answerRow) publishes(t *testing.T, s *rowStage) {
	_, err := s.behind.PublishJSON(t.Context(), s.topic, 1, WithIdempotencyKey("k"))
	var held bytes.Buffer
	resp, e := http.Get(s.proxy.daemon.JoinPath("v1/topics", s.topic, "messages").String())
	require.NoError(t, e)
	defer resp.Body.Close()
	_, e = held.ReadFrom(resp.Body)
	require.NoError(t, e)
	switch n := strings.Count(held.String(), `"data":1`); r.Expect {
	case "publishes":
		require.NoError(t, err)
		require.Equal(t, 1, n)
	case "rejects":
		require.Equal(t, r.Code, codeOf(err), "%v", err)
		require.Zero(t, n)
		if r.Code == "unexpected_answer" {
			require.ErrorContains(t, err, strconv.Itoa(r.Faults[0].Answer.Status))
			require.ErrorContains(t, err, "proxy")
			require.Equal(t, 1, s.proxy.count("publish"), "at once")
		}
	default:
		t.Fatalf("what is %q?", r.Expect)
	}
}

func (r *answerRow) subscribes(t *testing.T, s *rowStage, transport Transport) {
	type result struct {
		*Subscription
		error
	}
	opening := make(chan result, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		sub, err := s.behind.Subscribe(ctx, []wire.Start{FromNow(s.topic)}, WithTransport(transport), WithOpenTimeout(0), s.retried.notify())
		opening <- result{sub, err}
	}()
	var opened result
	open := func() {
		opened = <-opening
		require.NoError(t, opened.error)
		t.Cleanup(opened.Close)
	}
	published := 0
	publish := func() {
		published++
		_, err := s.beside.PublishJSON(t.Context(), s.topic, published)
		require.NoError(t, err)
	}
	delivers := func(n int) {
		item, err := opened.Next(t.Context())
		require.NoError(t, err)
		require.Nil(t, item.Gap)
		require.Equal(t, strconv.Itoa(n), string(item.Message.Data))
	}
	opens := r.Faults[0].On == "open"
	switch r.Expect {
	case "delivers":
		open()
		for n := 1; n <= 3; n++ {
			publish()
			delivers(n)
		}
	case "waits":
		if !opens {
			open()
			publish()
		}
		r.wantWaiting(t, s, func() bool { return len(opening) > 0 || opened.Subscription != nil && isClosed(opened.done) })
		s.proxy.heal()
		if opens {
			open()
			publish()
		}
		delivers(1)
		publish()
		delivers(2)
	case "ends":
		if !opens {
			open()
			publish()
			_, opened.error = opened.Next(t.Context())
		} else {
			opened = <-opening
		}
		require.Equal(t, r.Code, codeOf(opened.error), "%v", opened.error)
	default:
		t.Fatalf("what is %q?", r.Expect)
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// wantWaiting waits until the client has said that it waits, and why.
func (r *answerRow) wantWaiting(t *testing.T, s *rowStage, ended func() bool) {
	var errs []error
	require.Eventually(t, func() bool {
		errs, _ = s.retried.seen()
		return len(errs) > 3 || ended()
	}, 10*time.Second, time.Millisecond)
	require.False(t, ended(), "the subscription has ended")
	last := errs[len(errs)-1]
	require.ErrorContains(t, last, "proxy")
	if r.Rush {
		require.Less(t, s.proxy.count("poll"), 30)
		return
	}
	require.ErrorContains(t, last, strconv.Itoa(r.Faults[0].Answer.Status))
	require.ErrorContains(t, last, r.Reason)
}
