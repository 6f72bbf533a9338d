package pubsub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// safeToRepeat is how long after an attempt whose outcome is unknown another one
// with the same idempotency key may follow: half of the daemon's default window, in
// which it knows the key.
const safeToRepeat = time.Minute

// repeatWindow returns safeToRepeat, or half of the daemon's window if that is less.
func (c *Client) repeatWindow() time.Duration {
	if ms := c.idempotencyMS.Load(); ms > 0 && ms < 2*safeToRepeat.Milliseconds() {
		return time.Duration(ms) * time.Millisecond / 2
	}
	return safeToRepeat
}

// ErrOutcomeUnknown is in an error of Publish and PublishMany if the message may have been
// published: an answer was lost, or was not the daemon's. All other errors mean that it was not.
var ErrOutcomeUnknown = errors.New("the message may have been published")

// offer calls publish until it succeeds or fails for good, for as long as the client retries.
// Without repeatable it is called again only if the daemon did not take what it was sent; with
// it, also if nobody knows.
func (c *Client) offer(ctx context.Context, repeatable bool, publish func() error) error {
	pauses := backoff{max: c.maxBackoff}
	began := c.clock.now()
	var lost bool     // the outcome of a call is unknown
	var since instant // when the first of them began
	mayWait := func(wait time.Duration) bool {
		return c.clock.since(began)+wait <= c.publishRetry && !(lost && c.clock.since(since)+wait > c.repeatWindow())
	}
	for {
		tried := c.clock.now()
		err := publish()
		if err == nil {
			return nil
		}
		outcome := err
		switch {
		case isUnknown(err):
			outcome = fmt.Errorf("%w: %w", err, ErrOutcomeUnknown)
			if !lost {
				lost, since = true, tried
			}
		case lost:
			outcome = fmt.Errorf("%w; an earlier attempt had no answer: %w", err, ErrOutcomeUnknown)
		}
		wait := pauses.next(retryAfter(err))
		again := isNotTaken(err) || repeatable && isTransient(err) && !isUnsent(err)
		if !again || !mayWait(wait) || !c.waitToPublish(ctx, err, wait) || !mayWait(0) {
			return outcome
		}
	}
}

// waitToPublish reports whether to try again after d. It does not wait for an instant that
// ctx will not see.
func (c *Client) waitToPublish(ctx context.Context, err error, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d || ctx.Err() != nil {
		return false
	}
	if c.onPublishRetry != nil {
		c.onPublishRetry(err, d)
	}
	return c.clock.sleep(ctx, d) == nil
}

// isNotTaken reports whether the daemon did not take the message, but may later.
func isNotTaken(err error) bool {
	p := (*wire.Problem)(nil)
	if errors.As(err, &p) {
		return p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable
	}
	withoutToken := (*tokenError)(nil)
	return isUnsent(err) && !errors.As(err, &withoutToken)
}

// isUnknown reports whether the message may have been published in spite of err.
func isUnknown(err error) bool { return !isRefused(err) && !isUnsent(err) }

// isRefused reports whether err is the daemon's word that nothing was published.
func isRefused(err error) bool {
	p := (*wire.Problem)(nil)
	return errors.As(err, &p) && (p.Status < 500 || p.Status == http.StatusServiceUnavailable)
}

// isUnsent reports whether there was no connection to send anything on, or no token.
func isUnsent(err error) bool {
	withoutToken, untrusted, e := (*tokenError)(nil), (*tls.CertificateVerificationError)(nil), (*net.OpError)(nil)
	return errors.As(err, &withoutToken) || errors.As(err, &untrusted) || errors.As(err, &e) && e.Op == "dial"
}
