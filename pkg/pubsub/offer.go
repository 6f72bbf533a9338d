package pubsub

import (
	"context"
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

// offer calls publish until it succeeds or fails for good, at most as often as the
// client's attempts. Without repeatable it is called again only if the daemon said
// "later"; with it, also if nobody knows whether the daemon took what it was sent.
//
// The error is that of the last call, unless an earlier one's outcome is unknown:
// then so is that of all.
func (c *Client) offer(ctx context.Context, repeatable bool, publish func() error) error {
	pauses := backoff{max: c.maxBackoff}
	var lost error      // of the last call whose outcome is unknown
	var since time.Time // the first of them began
	for attempt := 1; ; attempt++ {
		began := time.Now()
		err := publish()
		if err == nil {
			return nil
		}
		if lost == nil {
			since = began
		}
		if isUnknown(err) {
			lost = err
		}
		wait, again := notTaken(err)
		if !again && repeatable && isTransient(err) && !isRefused(err) {
			wait, again = pauses.next(retryAfter(err)), true
		}
		tooLate := lost != nil && time.Since(since)+wait > c.repeatWindow()
		if !again || tooLate || attempt == c.publishAttempts || !c.waitFor(ctx, wait) {
			return whatIsKnown(lost, err)
		}
	}
}

// whatIsKnown is what is left to say after the last attempt's error.
func whatIsKnown(lost, last error) error {
	if lost == nil || isUnknown(last) {
		return last
	}
	return fmt.Errorf("%w (the attempt after that: %s)", lost, last.Error())
}

// waitFor reports whether to try again after d. It does not wait for an instant that
// ctx will not see.
func (c *Client) waitFor(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	return c.clock.sleep(ctx, d) == nil
}

// notTaken reports whether err is the daemon's word that it did not take the message
// but may later, and after what time.
func notTaken(err error) (wait time.Duration, ok bool) {
	p := (*wire.Problem)(nil)
	if !errors.As(err, &p) || p.Status != http.StatusTooManyRequests && p.Status != http.StatusServiceUnavailable {
		return 0, false
	}
	wait = retryAfter(err)
	return wait, wait > 0
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
	if withoutToken := (*tokenError)(nil); errors.As(err, &withoutToken) {
		return true
	}
	e := (*net.OpError)(nil)
	return errors.As(err, &e) && e.Op == "dial"
}
