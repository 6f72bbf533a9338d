package main

import (
	"context"
	"encoding/json"
	"errors"
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

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
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
			end := carryingOut(t, a, r.Listener.Addr().String())
			for _, pattern := range want {
				require.Eventually(t, func() bool { return r.saw(pattern) }, longEnough, 10*time.Millisecond, "nothing like %s", pattern)
			}
			end()
		})
	}
}

// longEnough is more than anything takes that is waited for.
const longEnough = 30 * time.Second

// carryingOut carries an attack out until the function that it returns is called, or
// the test is over.
func carryingOut(t *testing.T, a attack, target string) (end func() Raid) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan Raid, 1)
	go func() { done <- carryOut(ctx, a, target, time.Minute) }()
	end = sync.OnceValue(func() Raid {
		cancel()
		return <-done
	})
	t.Cleanup(func() { end() })
	return end
}

// listens takes one connection, and returns what comes on it, byte by byte, and how it
// ends.
func listens(t *testing.T) (address string, came <-chan string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	said := make(chan string, 100)
	go func() {
		defer close(said)
		conn, err := l.Accept()
		if err != nil {
			said <- err.Error()
			return
		}
		defer conn.Close()
		for b := make([]byte, 1); err == nil; {
			if _, err = conn.Read(b); err == nil {
				said <- string(b)
			}
		}
		if !errors.Is(err, io.EOF) {
			said <- " reset"
		}
	}()
	return l.Addr().String(), said
}

// next returns so many things that came.
func next(t *testing.T, came <-chan string, n int) (text string) {
	t.Helper()
	for range n {
		select {
		case more := <-came:
			text += more
		case <-time.After(longEnough):
			require.Fail(t, "no more comes", "behind %q", text)
		}
	}
	return text
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
	begun := time.Now()
	end := carryingOut(t, one(stance{say: []byte("GET "), nag: []byte("xyz")}), address)
	require.Equal(t, "GET xy", next(t, came, 6))
	require.GreaterOrEqual(t, time.Since(begun), 2*time.Second)
	found := end()
	rest := ""
	for text := range came {
		rest += text
	}
	require.Regexp(t, "^[xyz]* reset$", rest)
	require.EqualValues(t, 6+len(rest)-len(" reset"), found.SentBytes)
}

func TestHalfClosed(t *testing.T) {
	t.Parallel()
	address, came := listens(t)
	carryingOut(t, one(stance{say: []byte("GET "), shut: true}), address)
	require.Equal(t, "GET ", next(t, came, 5), "and no reset")
}

// A token is wrong in nothing but its signature, so the server has to check that.
func TestATokenIsBadlySignedAndOtherwiseGood(t *testing.T) {
	var set jose.JSONWebKeySet
	require.NoError(t, json.Unmarshal(keys, &set))
	require.Len(t, set.Keys, 4)
	token := badlySigned(`,"kid":"1"`)
	parsed, err := jwt.ParseSigned(token(), []jose.SignatureAlgorithm{jose.ES512})
	require.NoError(t, err)
	require.Len(t, set.Key(parsed.Headers[0].KeyID), 1)
	var claims jwt.Claims
	require.ErrorIs(t, parsed.Claims(set.Key("1")[0], &claims), jose.ErrCryptoFailure)
	require.NoError(t, parsed.UnsafeClaimsWithoutVerification(&claims))
	require.NoError(t, claims.Validate(jwt.Expected{}))
	require.NotEqual(t, token(), token())
}
