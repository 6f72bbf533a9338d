package throttle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An asker sends one user's requests, and knows when it was told to come again. It
// may be used concurrently.
type asker struct {
	client   *http.Client
	base     string // of URLs
	header   http.Header
	patience time.Duration // without any answer
}

func newAsker(authority string, patience time.Duration) *asker {
	// The idle time is below any server's: who finds a connection closed would not know
	// what became of the request.
	carrier := &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 10 * time.Second}
	return &asker{&http.Client{Transport: carrier}, "http://" + authority, client.BrowserHeader(authority), patience}
}

// close closes the connections, which must be idle.
func (a *asker) close() { a.client.CloseIdleConnections() }

// errUntold is of a request that got neither an answer nor a refusal.
var errUntold = errors.New("neither answered nor refused")

// An answer is one that came whole.
type answer struct {
	status      int
	body        []byte
	sent, had   time.Time
	retryHeader bool // Retry-After is there
	refused     bool
	comeAgain   time.Duration // after which it may be tried again, if refused
}

// took is how long it was under way.
func (a *answer) took() time.Duration { return a.had.Sub(a.sent) }

// ask sends a request and reads the whole answer. Refusals are answers.
func (a *asker) ask(ctx context.Context, method, path, contentType string, body []byte) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.patience, errUntold)
	defer cancel()
	got, err := a.exchange(ctx, method, path, contentType, body)
	switch {
	case err == nil:
		return got, nil
	case errors.Is(context.Cause(ctx), errUntold):
		return got, fmt.Errorf("%s: %w within %v", method, errUntold, a.patience)
	}
	return got, fmt.Errorf("%s: %w", method, withoutURL(err))
}

// withoutURL leaves out what net/http says of the URL, which may have a session's
// id.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

func (a *asker) exchange(ctx context.Context, method, path, contentType string, body []byte) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, fmt.Errorf("make a request: %w", err)
	}
	request.Header = a.header.Clone()
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
		request.Header.Set("Origin", a.base)
	}
	got := answer{sent: time.Now()}
	response, err := a.client.Do(request)
	if err != nil {
		return got, err
	}
	defer response.Body.Close()
	got.body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return got, fmt.Errorf("read an answer: %w", err)
	}
	got.had, got.status, got.retryHeader = time.Now(), response.StatusCode, response.Header.Get("Retry-After") != ""
	got.readRefusal()
	return got, nil
}

// maxAnswer is more than any answer to our short messages.
const maxAnswer = 1 << 20

// readRefusal finds out whether the server says to come again, and when.
func (a *answer) readRefusal() {
	var p wire.Problem
	if a.status != http.StatusServiceUnavailable && a.status != http.StatusTooManyRequests || json.Unmarshal(a.body, &p) != nil {
		return
	}
	told := a.retryHeader && p.RetryAfterMS > 0
	a.refused = told && (p.Code == wire.CodeOverloaded || p.Code == wire.CodeLimited)
	a.comeAgain = time.Duration(p.RetryAfterMS) * time.Millisecond
}

// want returns an error unless the answer has the status.
func (a *answer) want(status int) error {
	if a.status == status {
		return nil
	}
	return fmt.Errorf("answered %d: %.300s", a.status, a.body)
}
