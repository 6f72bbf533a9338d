package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Times of a JWKS.
const (
	jwksRefresh  = 5 * time.Minute  // between two fetches
	jwksRetry    = 10 * time.Second // after a failed one
	jwksUnknown  = 30 * time.Second // between two fetches because of unknown key ids
	jwksStale    = time.Hour        // after which its keys are refused
	jwksTimeout  = 10 * time.Second // of one fetch
	maxJWKSBytes = maxKeyFileBytes

	maxJWKSHeadBytes = 16 << 10
)

// A jwks fetches the keys at a URL, in one goroutine, which runs run. The other methods may be
// called concurrently. They never wait.
type jwks struct {
	// immutable
	url      string
	client   *http.Client
	log      *zap.Logger
	failures prometheus.Counter
	notify   func()        // called without mu after the keys have changed
	wanted   chan struct{} // asks for a fetch now; never closed

	mu      sync.Mutex // guards the fields below
	keys    []key      // of the last successful fetch; immutable
	stale   bool       // that fetch is too long ago: the keys verify no tokens
	sum     digest     // of its body
	fetched time.Time  // the last successful fetch; zero: none
	failed  bool       // the last fetch failed
	asked   time.Time  // when missing last asked for a fetch
	pending bool       // that fetch has not ended
}

func newJWKS(at string, log *zap.Logger, failures prometheus.Counter, notify func()) *jwks {
	network := http.DefaultTransport.(*http.Transport).Clone()
	network.DisableKeepAlives = true // one request in five minutes
	network.MaxResponseHeaderBytes = maxJWKSHeadBytes
	return &jwks{
		url: at, log: log, failures: failures, notify: notify, wanted: make(chan struct{}, 1),
		client: &http.Client{Transport: network, Timeout: jwksTimeout, CheckRedirect: sameHost},
	}
}

// sameHost refuses redirects to another host or scheme, and long chains of them.
func sameHost(to *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) > 3:
		return errors.New("too many redirects")
	case to.URL.Scheme != first.Scheme || to.URL.Host != first.Host:
		return errors.New("it redirects to another host or scheme, which is not followed")
	}
	return nil
}

// run fetches the keys until ctx ends. A nil *jwks has none.
func (j *jwks) run(ctx context.Context) {
	for j != nil && ctx.Err() == nil {
		wait := jwksRefresh
		if !j.fetch(ctx) {
			wait = jwksRetry
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-j.wanted:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// fetch replaces the keys by those at the URL.
func (j *jwks) fetch(ctx context.Context) (ok bool) {
	j.mu.Lock()
	answers := j.pending
	j.mu.Unlock()
	text, err := j.get(ctx)
	var keys []key
	var ignored []error
	if err == nil {
		keys, ignored, err = parseJWKs(text, publicKeyOfJWK)
	}
	if err == nil && len(keys) == 0 {
		err = errors.New("it has no key that verifies tokens")
	}
	if err == nil && len(keys) > maxKeys {
		err = fmt.Errorf("it must have at most %d keys; got %d", maxKeys, len(keys))
	}
	changed, first := j.note(keys, digest(sha256.Sum256(text)), err, answers)
	switch {
	case err == nil && changed:
		j.log.Info("keys of auth.jwks fetched", zap.Int("keys", len(keys)), zap.Int("ignored", len(ignored)), zap.Errors("reasons", ignored))
		j.notify()
	case err != nil && ctx.Err() == nil:
		j.failures.Inc()
		if first {
			j.log.Warn("cannot fetch the keys of auth.jwks; those that were fetched before stay valid for an hour", zap.Error(err))
		}
	}
	return err == nil
}

// note notes the result of a fetch. It reports whether the keys have changed, and whether err
// is the first failure after a success.
func (j *jwks) note(keys []key, sum digest, err error, answers bool) (changed, first bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	first = err != nil && !j.failed
	j.failed = err != nil
	if answers {
		j.pending = false
	}
	if err != nil {
		return false, first
	}
	changed = j.keys == nil || j.stale || sum != j.sum
	j.keys, j.sum, j.fetched, j.stale = keys, sum, time.Now(), false
	return changed, false
}

// get returns the body at the URL.
func (j *jwks) get(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, jwksTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := j.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("its answer has status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxJWKSBytes+1))
	if err == nil && len(text) > maxJWKSBytes {
		err = fmt.Errorf("its answer has more than %d bytes", maxJWKSBytes)
	}
	return text, err
}

// missing is called for a token that no key verifies. It asks for a fetch, at most one in
// jwksUnknown, and reports whether the caller should send the token again later: such a fetch
// has not ended, or the last fetch failed.
func (j *jwks) missing(now time.Time) (again bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.pending {
		return true
	}
	if now.Sub(j.asked) < jwksUnknown {
		return j.failed || j.fetched.IsZero()
	}
	j.asked, j.pending = now, true
	select {
	case j.wanted <- struct{}{}:
	default: // it is about to fetch
	}
	return true
}

// expire makes the keys stale if the last successful fetch is too long ago. It reports whether
// it did.
func (j *jwks) expire(now time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.keys == nil || j.stale || now.Sub(j.fetched) < jwksStale {
		return false
	}
	j.stale = true
	return true
}

// current returns the keys of the last successful fetch, and whether they are stale.
func (j *jwks) current() (keys []key, stale bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.keys, j.stale
}

// age returns the time since the last successful fetch; 0: there was none.
func (j *jwks) age(now time.Time) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fetched.IsZero() {
		return 0
	}
	return now.Sub(j.fetched)
}
