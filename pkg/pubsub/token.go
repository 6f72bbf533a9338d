package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// WithToken makes the Client send a bearer token, or an API key, with every request. When it
// expires or is revoked, subscriptions end. To go on, subscribe with a new Client, After the
// Positions of the subscription. White space around the token, such as the last newline of a file, is
// removed. New refuses a token that is empty or has other characters than visible ASCII.
// Default: none.
func WithToken(token string) Option {
	return func(c *Client) error {
		token, err := trimToken(token)
		if err != nil {
			return err
		}
		return WithTokenSource(func(context.Context) (string, error) { return token, nil })(c)
	}
}

// WithTokenSource makes the Client call source for a bearer token: before the first request,
// when most of the token's time is over, and once when the daemon refuses the token. A
// subscription takes the new token without a reconnect. It ends if the daemon refuses that,
// too. A token of another subject needs another Client.
//
// A new token may permit less. Topics that it does not permit end with a gap, forbidden, and the
// others continue.
//
// One goroutine at a time calls source. Nothing waits for it while the token in use has not been
// refused. If source returns an error, or what WithToken would refuse, the request fails, and a
// subscription retries. source must return soon after ctx ends: Close waits for it.
func WithTokenSource(source func(ctx context.Context) (string, error)) Option {
	return func(c *Client) error {
		if source == nil {
			return errors.New("the token source is nil: omit the option")
		}
		c.tokens = &tokens{source: source, turn: make(chan struct{}, 1)}
		return nil
	}
}

// tokens has the token in use. Its methods may be called concurrently; those of nil know no
// token.
type tokens struct {
	source func(context.Context) (string, error) // immutable
	turn   chan struct{}                         // has a value while somebody calls source; never closed

	mu    sync.Mutex // guards token; not held during a call of source
	token string     // empty: not asked for
}

// tokenError is an error of the source. Nothing was sent.
type tokenError struct{ error }

func (e *tokenError) Unwrap() error { return e.error }

// get returns the token in use, or a new one if that is refused.
func (t *tokens) get(ctx context.Context, refused string) (string, error) {
	if t == nil {
		return "", nil
	}
	if token := t.current(); token != refused {
		return token, nil // though source may be at work on the next one
	}
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if token := t.current(); token != refused {
		return token, nil
	}
	token, err := t.source(ctx)
	if err == nil {
		token, err = trimToken(token)
	}
	if err != nil {
		return refused, &tokenError{fmt.Errorf("get a token: %w", err)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token = token
	return token, nil
}

func (t *tokens) current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.token
}

// trimToken returns the token without white space around it, or an error that does not quote it.
func trimToken(token string) (string, error) {
	token = strings.TrimSpace(token)
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New(`the token must be text of visible ASCII characters, and not empty: no spaces, no "Bearer"`)
	}
	return token, nil
}

// renewed returns a new token in place of the one in use.
func (t *tokens) renewed(ctx context.Context) (string, error) {
	old, err := t.get(ctx, "")
	if err != nil {
		return "", err
	}
	return t.get(ctx, old)
}

// use calls try with the token. If the daemon refuses the token, it calls try once more, with a
// new one.
func (t *tokens) use(ctx context.Context, try func(token string) error) error {
	token, err := t.get(ctx, "")
	for again := false; err == nil; again = true {
		err = try(token)
		if again || !isUnauthorized(err) {
			return err
		}
		refused, why := token, err
		if token, err = t.get(ctx, refused); err == nil && token == refused {
			return why
		}
	}
	return err
}

// authorized returns the request with a token and a body that was not read.
func authorized(req *http.Request, token string) *http.Request {
	req = req.Clone(req.Context())
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if req.GetBody != nil {
		req.Body, _ = req.GetBody() // never fails: it reads a slice
	}
	if req.Header.Get("Idempotency-Key") != "" {
		req.GetBody = nil // or net/http repeats it by itself, also when the daemon has forgotten the key
	}
	return req
}

// isUnauthorized reports whether the daemon wants another token.
func isUnauthorized(err error) bool {
	return hasCode(err, wire.CodeUnauthorized, wire.CodeTokenExpired)
}

// lastRenewal is how long before a token expires no renewal begins any more. The daemon soon
// says token_expired.
const lastRenewal = time.Second

// expiresIn notes when the stay's token expires, and plans its renewal for when about 80 % of
// the time is over. Without a source of tokens there is nothing to send: the right comes from
// a client certificate, say.
func (l *loop) expiresIn(left time.Duration) {
	l.renewal.Stop()
	select {
	case <-l.renewalDue: // it has just rung
	default:
	}
	if l.client.tokens != nil && left > lastRenewal {
		l.granted, l.lasts = l.client.clock.now(), left
		l.renewal.Reset(left/4*3 + rand.N(left/10))
	}
}

// renewed is what the source of tokens gave.
type renewed struct {
	token string
	err   error
}

// fetchToken asks the source for a new token. The source may take its time, so the loop does
// not wait for it.
func (l *loop) fetchToken(life context.Context) {
	l.fetching.Go(func() {
		r := renewed{err: &tokenError{errGoexit}}
		defer func() {
			select {
			case l.renewed <- r:
			case <-life.Done():
			}
		}()
		ctx, cancel := context.WithTimeoutCause(life, requestTimeout, errSilent)
		defer cancel()
		r.token, r.err = l.client.tokens.renewed(ctx)
	})
}

// renewToken gives the stay a new token. If that fails, it is tried again in the rest of
// the old token's time. An error means that the stay is lost.
func (l *loop) renewToken(life context.Context, r renewed) error {
	err := r.err
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(life, requestTimeout, errSilent)
		defer cancel()
		var left time.Duration
		if left, err = l.stay.authenticate(ctx, r.token, l.keep()); err == nil {
			l.expiresIn(left)
			return nil
		}
	}
	if isUncertain(err) {
		return err
	}
	l.notify(err, 0)
	l.expiresIn(l.lasts - l.client.clock.since(l.granted))
	return nil
}

// reauthenticate gives the stay a new token after the daemon refused the old one with err,
// unless it has refused two in a row. It waits for a daemon that cannot be reached. Without a
// source of tokens it makes a new connection, on which the client may show a new certificate.
func (l *loop) reauthenticate(life context.Context, err error) error {
	if l.refused {
		return err
	}
	l.refused = true
	if l.client.tokens == nil {
		l.client.http.CloseIdleConnections()
	}
	for {
		token, err := l.client.tokens.get(life, "")
		var left time.Duration
		if err == nil {
			left, err = l.stay.authenticate(life, token, l.keep())
		}
		switch {
		case err == nil:
			l.expiresIn(left)
			return nil
		case !mayPass(err):
			return err
		}
		if err := l.pause(life, err); err != nil {
			return err
		}
	}
}
