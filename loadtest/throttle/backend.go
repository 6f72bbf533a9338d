package throttle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A backend is the application behind the publish hook: it checks who asks, takes
// its time, and lets every message pass.
type backend struct {
	listener net.Listener
	server   *http.Server
	serving  sync.WaitGroup     // the listener's loop
	cancel   context.CancelFunc // ends all calls

	key      []byte
	callTime time.Duration
	workers  chan struct{} // has a place for each call that is served; nil: they are not bounded

	mu       sync.Mutex // guards the fields below
	letIn    map[string]letIn
	late     *stats.Latency // by how much its own answers were
	calls    int64
	serves   int
	most     int // that were served or waited at a time
	unsigned faults
	strange  faults
}

// letIn is a user's call that came through.
type letIn struct {
	number int
	at     time.Time
	times  int
}

// startBackend starts one, which must be stopped.
func startBackend(cfg *Config, secret string) (*backend, error) {
	l, err := net.Listen("tcp", cfg.Backend)
	if err != nil {
		return nil, fmt.Errorf("start the back end: %w", err)
	}
	b := &backend{listener: l, key: webhook.KeyOf(secret), callTime: cfg.CallTime, letIn: map[string]letIn{}, late: stats.NewLatency()}
	if cfg.BackendWorkers > 0 {
		b.workers = make(chan struct{}, cfg.BackendWorkers)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.server = &http.Server{Handler: b, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	b.serving.Go(func() { _ = b.server.Serve(l) })
	return b, nil
}

func (b *backend) url() string { return "http://" + b.listener.Addr().String() + "/publish" }

// stop ends all that is served, and returns when it has ended.
func (b *backend) stop() {
	b.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), stops)
	defer cancel()
	_ = b.server.Shutdown(ctx)
	_ = b.server.Close()
	b.serving.Wait()
}

// stops is how long calls that were ended may take to notice.
const stops = 5 * time.Second

// maxAsked bounds a call's body; our messages are short.
const maxAsked = 64 << 10

// asked is the body of a hook's call.
type asked struct {
	Type    string `json:"type"`
	Topic   string `json:"topic"`
	Message struct {
		Data content `json:"data"`
	} `json:"message"`
}

// content is what a user publishes.
type content struct {
	Number int `json:"n"` // from 1
}

// ServeHTTP is part of http.Handler.
func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxAsked))
	if err == nil {
		err = b.enter(r.Header, body, time.Now())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer b.leave()
	if b.serve(r.Context()) {
		w.WriteHeader(http.StatusNoContent)
	}
}

// enter notes a call that came through.
func (b *backend) enter(h http.Header, body []byte, now time.Time) error {
	var a asked
	signed := webhook.Check(h, body, b.key, now)
	err := json.Unmarshal(body, &a)
	if err == nil && (a.Type != wire.HookPublish || a.Message.Data.Number < 1) {
		err = fmt.Errorf("the hook got %.200s, which no user published", body)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	b.unsigned.note(signed)
	b.strange.note(err)
	if err := errors.Join(signed, err); err != nil {
		return err
	}
	in, n := b.letIn[a.Topic], a.Message.Data.Number
	if in.number != n {
		in = letIn{number: n, at: now}
	}
	in.times++
	b.letIn[a.Topic] = in
	b.serves++
	b.most = max(b.most, b.serves)
	return nil
}

func (b *backend) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serves--
}

// serve takes its time. It reports whether the caller still waits.
func (b *backend) serve(ctx context.Context) bool {
	if b.workers != nil {
		select {
		case b.workers <- struct{}{}:
			defer func() { <-b.workers }()
		case <-ctx.Done():
			return false
		}
	}
	due := time.Now().Add(b.callTime)
	if !sleep(ctx, b.callTime) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late.Record(time.Since(due))
	return true
}

// passed tells when the call of a message came through, and how often.
func (b *backend) passed(topic string, number int) (at time.Time, times int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.letIn[topic]
	if in.number != number {
		return time.Time{}, 0
	}
	return in.at, in.times
}

// sleep waits, and reports whether nothing came between.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
