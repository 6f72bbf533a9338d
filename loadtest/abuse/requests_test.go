package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A recorder is a server that takes everything, and keeps what it was asked.
type recorder struct {
	*httptest.Server
	mu    sync.Mutex
	lines []string // method, URL, and the size of the body
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{}
	r.Server = httptest.NewUnstartedServer(r)
	r.Config.MaxHeaderBytes = 1 << 20
	r.Start()
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	n, _ := io.Copy(io.Discard, request.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, request.Method+" "+request.URL.String()+" "+strconv.FormatInt(n, 10)+" "+strconv.Itoa(len(request.Header.Get("X-Long"))))
	_, _ = io.WriteString(w, `{"session":"0123456789abcdefghijklm","position":"abuse.quiet@k3:1"}`)
}

func (r *recorder) saw(pattern string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.lines, regexp.MustCompile(pattern).MatchString)
}

func TestAttacksAskForWhatTheySay(t *testing.T) {
	for name, want := range map[string][]string{
		"slow-readers":   {`^GET /v1/poll\?mode=stream&topic=abuse.busy 0`, `^GET /v1/sse\?topic=abuse.busy 0`, `^POST /v1/topics/abuse.busy/messages 16384`},
		"half-open":      {`^POST /v1/topics/abuse.quiet/messages 1 `, `^GET /v1/poll\?topic=abuse.quiet@k3:1 0`},
		"poll-flood":     {`^POST /v1/sessions `, `^GET /v1/sessions/0123456789abcdefghijklm/poll\?ack=0 0`},
		"topics":         {`^POST /v1/topics/abuse.new.\d.\d+/messages 1 `, `^PATCH /v1/sessions/0123456789abcdefghijklm `},
		"guesses":        {`^GET /v1/sessions/\d{10}[a-z]{13}/poll\?ack=0 0`, `^GET /v1/sessions/\d{10}[a-z]{13} 0`, `^PATCH /v1/sessions/\d{10}[a-z]{13} `},
		"patches":        {`^PATCH /v1/sessions/0123456789abcdefghijklm \d{4} `},
		"large-messages": {`^POST /v1/topics/abuse.large.\d/messages 65536`},
		"oversized":      {`^GET /v1/poll\?topic=abuse.quiet 0 65536`, `^GET /v1/poll\?topic=abuse.quiet&long=x{1000}`, `^POST /v1/topics/abuse.large.0/messages 262144`},
		"hoarders":       {`^POST /v1/sessions \d{4} `, `^POST /v1/topics/abuse.hoard.\d+/messages 65536`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder(t)
			a, ok := attackNamed(name, true)
			require.True(t, ok)
			carryOut(t.Context(), a, r.Listener.Addr().String(), time.Second)
			for _, pattern := range want {
				require.True(t, r.saw(pattern), "nothing like %s", pattern)
			}
		})
	}
}

// listens takes one connection, and returns what comes on it and how it ends.
func listens(t *testing.T) (address string, came <-chan string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	whole := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			whole <- err.Error()
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		text, err := io.ReadAll(in)
		if err != nil {
			text = append(text, " reset"...)
		}
		whole <- string(text)
	}()
	return l.Addr().String(), whole
}

func one(s stance) attack {
	return attack{sources: 1, pace: 100, crowd: 1, run: func(ctx context.Context, r *raid) error {
		r.stand(ctx, func(int) stance { return s })
		return nil
	}}
}

func TestAByteASecond(t *testing.T) {
	t.Parallel()
	address, came := listens(t)
	found := carryOut(t.Context(), one(stance{say: []byte("GET "), nag: []byte("xyz")}), address, 3500*time.Millisecond)
	require.Regexp(t, "^GET xyz? reset$", <-came)
	require.Contains(t, []int64{6, 7}, found.SentBytes)
}

func TestHalfClosed(t *testing.T) {
	t.Parallel()
	address, came := listens(t)
	carryOut(t.Context(), one(stance{say: []byte("GET "), shut: true}), address, 500*time.Millisecond)
	require.Equal(t, "GET ", <-came)
}
