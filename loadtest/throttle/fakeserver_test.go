package throttle

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A fakeServer is as much of the daemon as the experiment needs, with faults. Its
// sessions are their topics' names.
type fakeServer struct {
	// pass returns what polls get in place of a message's frame.
	pass func(number uint64, frame string) []string
	// refuse answers who has waited in vain, in place of the fake.
	refuse func(w http.ResponseWriter, r *http.Request)
	// asks is how often the hook is asked about a message, if not once; unsigned calls of
	// it have another secret.
	asks     func() int
	unsigned bool
	// dawdle is how long publishes (or openings) that found a place are kept waiting even
	// so; delay is what messages are under way to polls.
	dawdle, dawdleOpening, delay time.Duration

	wait, says      time.Duration // says is what it says of wait; 0: nothing
	hook            string
	secret          string
	sessions, calls chan struct{}
	client          *http.Client

	mu     sync.Mutex // guards the fields below
	topics map[string]*fakeTopic
}

type fakeTopic struct {
	newest uint64
	frames []string
	more   chan struct{} // closed when there are others
}

// A quietProgress shows nothing.
type quietProgress struct{}

func (quietProgress) Notice(string)          {}
func (quietProgress) Update(loadtest.Status) {}

// startFake starts a server with the setting in force, and returns how it is
// measured: 8 users, for two seconds if not said, who put up with whatever a busy
// machine does.
func startFake(t *testing.T, f *fakeServer, s Setting) Config {
	t.Helper()
	cfg := Default()
	cfg.Settings, cfg.Users, cfg.Duration, cfg.CallTime = []Setting{s}, 8, 2*time.Second, 100*time.Millisecond
	cfg.Wait, cfg.Tolerance, cfg.Secret, cfg.Backend = 100*time.Millisecond, 30*time.Second, webhook.NewSecret(), freeAddress(t)
	f.wait, f.secret, f.hook, f.client = cfg.Wait, cfg.Secret, "http://"+cfg.Backend+"/publish", &http.Client{Transport: &http.Transport{}}
	f.sessions, f.calls, f.topics = make(chan struct{}, s.Sessions), make(chan struct{}, s.Calls), map[string]*fakeTopic{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sessions", f.openSession)
	mux.HandleFunc("DELETE /v1/sessions/{id}", f.endSession)
	mux.HandleFunc("GET /v1/sessions/{id}/poll", f.poll)
	mux.HandleFunc("POST /v1/topics/{topic}/messages", f.publish)
	server := httptest.NewServer(mux)
	t.Cleanup(func() { server.Close(); f.client.CloseIdleConnections() })
	cfg.Target = server.URL
	return cfg
}

// freeAddress is one that nobody listens at, nor will before the test does: where
// loopback has more addresses than one, nobody else is at this one.
func freeAddress(t *testing.T) string {
	t.Helper()
	host := "127.0.0.1"
	if runtime.GOOS == "linux" {
		host = fmt.Sprintf("127.%d.%d.%d", 64+rand.IntN(64), rand.IntN(256), 1+rand.IntN(254))
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// enter waits for a place, and refuses who waits too long.
func (f *fakeServer) enter(w http.ResponseWriter, r *http.Request, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	default: // only then may it be too late
	}
	ctx, cancel := context.WithTimeout(r.Context(), f.wait)
	defer cancel()
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
	}
	if f.refuse != nil {
		f.refuse(w, r)
		return false
	}
	refuse(w, 30)
	return false
}

func refuse(w http.ResponseWriter, ms int64) {
	p := problem.New(wire.CodeOverloaded, "come again", "no place")
	p.RetryAfterMS = ms
	w.Header().Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// topic returns a topic; the caller has the lock.
func (f *fakeServer) topic(name string) *fakeTopic {
	if f.topics[name] == nil {
		f.topics[name] = &fakeTopic{more: make(chan struct{})}
	}
	return f.topics[name]
}

func (f *fakeServer) openSession(w http.ResponseWriter, r *http.Request) {
	var o wire.OpenRequest
	_ = json.NewDecoder(r.Body).Decode(&o)
	if !f.enter(w, r, f.sessions) {
		return
	}
	sleep(r.Context(), f.dawdleOpening)
	f.mu.Lock()
	defer f.mu.Unlock()
	topic := f.topic(o.Topics[0].Topic)
	session := fmt.Sprintf("%s~%d", o.Topics[0].Topic, o.Topics[0].After)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(wire.SessionOpened{Session: session, Ack: true,
		Positions: []wire.Position{{Topic: o.Topics[0].Topic, Epoch: "e1", Offset: topic.newest}}, Limits: wire.Limits{PollTimeoutMS: 100, WaitMS: f.says.Milliseconds()}})
}

func (f *fakeServer) endSession(w http.ResponseWriter, _ *http.Request) {
	<-f.sessions
	w.WriteHeader(http.StatusNoContent)
}

// poll answers with the next frame; what was acked before is counted from where the
// session began.
func (f *fakeServer) poll(w http.ResponseWriter, r *http.Request) {
	name, begin, _ := strings.Cut(r.PathValue("id"), "~")
	at, _ := strconv.Atoi(begin)
	acked, _ := strconv.Atoi(r.URL.Query().Get("ack"))
	f.mu.Lock()
	topic := f.topic(name)
	f.mu.Unlock()
	held, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
	defer cancel()
	for {
		f.mu.Lock()
		frames := topic.frames[min(at+acked, len(topic.frames)):]
		more := topic.more
		f.mu.Unlock()
		if len(frames) > 0 {
			sleep(r.Context(), f.delay)
			_, _ = io.WriteString(w, frames[0])
			return
		}
		select {
		case <-more:
		case <-held.Done():
			return
		}
	}
}

func (f *fakeServer) publish(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if !f.enter(w, r, f.calls) {
		return
	}
	defer func() { <-f.calls }()
	sleep(r.Context(), f.dawdle)
	name := r.PathValue("topic")
	asks := 1
	if f.asks != nil {
		asks = f.asks()
	}
	for range asks {
		if status := f.ask(r.Context(), name, body); status != http.StatusNoContent {
			http.Error(w, fmt.Sprintf("the hook answered %d", status), http.StatusServiceUnavailable)
			return
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	topic := f.topic(name)
	topic.newest++
	at := wire.Position{Topic: name, Epoch: "e1", Offset: topic.newest}
	frames := []string{fmt.Sprintf(`{"position":"%v","time":1,"data":%s}`+"\n", at, body)}
	if f.pass != nil {
		frames = f.pass(at.Offset, frames[0])
	}
	topic.frames = append(topic.frames, frames...)
	close(topic.more)
	topic.more = make(chan struct{})
	_ = json.NewEncoder(w).Encode(wire.Published{Position: at, Time: 1})
}

// ask calls the hook as the daemon does.
func (f *fakeServer) ask(ctx context.Context, topic string, data []byte) (status int) {
	secret := f.secret
	if f.unsigned {
		secret = "another secret of 24 bytes"
	}
	body := fmt.Appendf(nil, `{"type":"publish","topic":%q,"message":{"data":%s}}`, topic, data)
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, webhook.KeyOf(secret))
	fmt.Fprintf(mac, "m1.%s.%s", stamp, body)
	request, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.hook, bytes.NewReader(body))
	request.Header.Set("webhook-id", "m1")
	request.Header.Set("webhook-timestamp", stamp)
	request.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	answer, err := f.client.Do(request)
	if err != nil {
		return http.StatusBadGateway
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}
