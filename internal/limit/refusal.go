package limit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Refusal is a problem for a client that uses too much of something. The server answers
// it after Hold. Otherwise a client that ignores refusals would retry at once and keep the
// daemon busy.
type Refusal struct {
	*wire.Problem
	Limit string // the name of the limit, as metrics label it
	Hold  time.Duration
}

// Unwrap returns the problem.
func (r *Refusal) Unwrap() error { return r.Problem }

// refuse counts a refusal of w and returns it.
func (l *Limiter) refuse(w Who, now time.Time, limit string, p *wire.Problem) error {
	l.metrics.Limited.WithLabelValues(limit).Inc()
	r := &Refusal{Problem: p, Limit: limit}
	if w.source != nil && !bucketIn(&w.source.prompt, Rate{PerSecond: promptPerSecond, Burst: promptBurst}).AllowN(now, 1) {
		r.Hold = l.inForce.Load().Wait
	}
	return r
}

// The rate of refusals that a source gets without delay. Many clients may share an
// address. Clients that wait for retry_after_ms get few refusals.
const (
	promptBurst     = 20
	promptPerSecond = 1
)

// Hold waits until it is time to answer r, or until Release. It returns false if ctx ends
// first, or if too many refusals wait: then the client gets no answer.
func (l *Limiter) Hold(ctx context.Context, r *Refusal) bool {
	if r.Hold <= 0 {
		return true
	}
	defer l.held.Add(-1)
	if l.held.Add(1) > int64(l.inForce.Load().WaitingCalls) {
		return false
	}
	timer := time.NewTimer(r.Hold)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.released:
		return true
	case <-ctx.Done():
		return false
	}
}

// Release ends all waits in Hold, and those to come: the daemon stops, and clients should
// leave.
func (l *Limiter) Release() { l.release() }

// rateName names the rate of a kind in a scope, in metrics and problems.
func rateName(kind Kind, scope Scope) string { return "rates." + kind.String() + "." + scope.String() }

func (r Rule) rateName() string { return "topics." + r.Name + ".rate" }

var scopeTexts = [scopes]string{Address: "from your address", Principal: "from your principal", All: "from all clients together"}

// tooOften refuses n calls for which the bucket of a rate has too few tokens. what says
// which calls the rate limits.
func (l *Limiter) tooOften(w Who, now time.Time, name, what string, b *rate.Limiter, n int) error {
	remedy, most := "wait for retry_after_ms, or raise "+name, b.Burst()
	if n > most {
		remedy = fmt.Sprintf("name at most %d at once, or raise %s", most, name)
		what = fmt.Sprintf("%s (%d at once)", what, n)
	}
	missing := max(0, float64(min(n, most))-b.TokensAt(now))
	after := time.Duration(missing / float64(b.Limit()) * float64(time.Second))
	perSecond := Rate{PerSecond: float64(b.Limit()), Burst: most}
	return l.refuse(w, now, name, retryLater(after, remedy, "too many %s: the rate is %s", what, perSecond))
}

// tooMany returns the problem of an address that has reached a limit.
func tooMany(limit, what string, most int) *wire.Problem {
	return retryLater(time.Second, "use fewer at a time, or raise limits."+limit,
		"an address can have at most %d %s", most, what)
}

// TooManyPending returns the *Refusal of a session with too many publishes in flight.
func (l *Limiter) TooManyPending(w Who) error {
	const name = "pending_messages_per_session"
	return l.refuse(w, time.Now(), name, retryLater(time.Second, "wait for replies to some of them, or raise limits."+name,
		"a session can have at most %d publishes in flight", l.inForce.Load().PendingMessages))
}

func retryLater(after time.Duration, remedy, detail string, args ...any) *wire.Problem {
	return problem.New(wire.CodeLimited, remedy, detail, args...).Retry(after)
}

// Spread returns the problem with a random time to retry, between one and two times that of
// p, so that clients that are refused together do not retry together. Without a time it
// returns p.
func Spread(p *wire.Problem) *wire.Problem {
	if p.RetryAfterMS <= 0 {
		return p
	}
	q := *p
	q.RetryAfterMS += rand.Int64N(p.RetryAfterMS + 1)
	return &q
}

// RetryAfter returns the time to retry for the Retry-After header, in whole seconds
// (RFC 9110, section 10.2.3), rounded up; 0 means no header.
func RetryAfter(p *wire.Problem) int64 { return (p.RetryAfterMS + 999) / 1000 }
