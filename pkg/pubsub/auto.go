package pubsub

import (
	"context"
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// helloPatience is how long a transport may say nothing before the next is tried.
const helloPatience = 5 * time.Second

// manyFailures in a row, of a transport that once worked, are not taken for the
// daemon's any more: the network may be another, which lets less through.
const manyFailures = 6

// errNoHello is why a transport was given up that may be kept back on its way.
var errNoHello = errors.New("no hello frame arrived in time")

// openOnce makes one attempt: by the first transport of the ladder, and if that does
// not get through by the next ones. Those above the one that works are not tried
// again. What it opened lives as long as life; ctx bounds the attempt.
func (l *loop) openOnce(life, ctx context.Context, starts []wire.Start) (stay, opened, error) {
	for i, t := range l.ladder {
		last := i == len(l.ladder)-1
		stay, o, err := l.openWithin(life, ctx, t, starts, last)
		switch {
		case err == nil:
			l.ladder, l.settled = l.ladder[i:], true
			l.s.over(t)
			return stay, o, nil
		case last, ctx.Err() != nil, !l.isBlocked(err):
			return nil, opened{}, err
		}
	}
	panic("BUG: there is no transport to try")
}

// openWithin bounds an attempt by one transport. The last has the time that a daemon
// under load may need; of those before it something must come soon, or it is taken
// for kept back.
func (l *loop) openWithin(life, ctx context.Context, t Transport, starts []wire.Start, last bool) (stay, opened, error) {
	patience, cause := requestTimeout, errSilent
	if !last {
		patience, cause = l.options.helloPatience(), errNoHello
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, cause)
	defer cancel()
	return l.openBy(life, ctx, t, starts, !last)
}

// helloPatience leaves time for the last transport, if there is little for all.
func (o *subscribeOptions) helloPatience() time.Duration {
	if o.openTimeout > 0 {
		return min(helloPatience, o.openTimeout/3)
	}
	return helloPatience
}

// isBlocked reports whether err, of an opening, is a reason to try another transport:
// this one is refused, or something between does not let it through. A daemon that
// cannot be reached, says "later" or refuses the token says so of all. Of a transport that has worked
// before, what may pass is awaited for a while.
func (l *loop) isBlocked(err error) bool {
	problem := (*wire.Problem)(nil)
	switch {
	case isUnsent(err), isUnauthorized(err):
		return false
	case !mayPass(err):
		return true
	case errors.As(err, &problem):
		return false
	}
	return !l.settled || l.backoff.failures >= manyFailures
}
