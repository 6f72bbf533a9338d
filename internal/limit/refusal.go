package limit

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Refusal is a problem for a client that uses too much of something. The server answers
// it after Hold. A client that ignores refusals would otherwise retry at once, and
// refusing it would become the daemon's main work.
type Refusal struct {
	*wire.Problem
	Limit string // the name of the limit, as metrics label it
	Hold  time.Duration
}

// Unwrap returns the problem.
func (r *Refusal) Unwrap() error { return r.Problem }

// refuse counts a refusal of w and returns it. Most refusals are answered at once.
func (l *Limiter) refuse(w Who, now time.Time, limit string, p *wire.Problem) error {
	l.metrics.Limited.WithLabelValues(limit).Inc()
	r := &Refusal{Problem: p, Limit: limit}
	if w.source != nil && !w.source.mayHearAtOnce(now) {
		r.Hold = l.inForce.Load().Wait
	}
	return r
}

// Hold waits until r should be answered, or until Release. It returns false if ctx ends
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

// Release lets every refusal be answered at once from now on, also those that wait,
// because their clients should leave.
func (l *Limiter) Release() { l.release() }

// rateName names the rate of a kind in a scope, in metrics and problems.
func rateName(kind Kind, scope Scope) string { return "rates." + kind.String() + "." + scope.String() }

func (r Rule) rateName() string { return "topics." + r.Name + ".rate" }

// tooOften is the problem of n calls for which a bucket holds too little.
func tooOften(kind Kind, n int, scope Scope, b *rate.Limiter, now time.Time) *wire.Problem {
	name := rateName(kind, scope)
	whose := [scopes]string{Address: "from your address", Principal: "from your principal", All: "from all clients together"}[scope]
	if most := b.Burst(); n > most {
		return retryLater(untilTokens(b, most, now), fmt.Sprintf("name at most %d at once, or raise %s", most, name),
			"%d %s at once are too many %s: the rate is %s", n, kind, whose, rateOf(b))
	}
	return retryLater(untilTokens(b, n, now), "wait for retry_after_ms, or raise "+name,
		"too many %s %s: the rate is %s", kind, whose, rateOf(b))
}

func tooOftenToTopics(rule *ruled, now time.Time) *wire.Problem {
	return retryLater(untilTokens(rule.bucket, 1, now), "wait for retry_after_ms, or raise "+rule.rateName(),
		"too many messages to the topics of %s: the rate is %s", rule.Pattern, rateOf(rule.bucket))
}

// tooMany is the problem of an address that may have no more of something.
func tooMany(limit, what string, most int) *wire.Problem {
	return retryLater(time.Second, "use fewer at a time, or raise limits."+limit,
		"your address has %d %s, which is the limit", most, what)
}

// TooManyPending is the *Refusal of one more publish of a session.
func (l *Limiter) TooManyPending(w Who) error {
	const name = "pending_messages_per_session"
	return l.refuse(w, time.Now(), name, retryLater(time.Second, "wait for answers to some of them, or raise limits."+name,
		"the session has %d publishes in flight, which is the limit", l.inForce.Load().PendingMessages))
}

func retryLater(after time.Duration, remedy, detail string, args ...any) *wire.Problem {
	return wire.NewProblem(wire.CodeLimited, remedy, detail, args...).Retry(after)
}

// untilTokens is how long it takes until a bucket has enough for n more calls.
func untilTokens(b *rate.Limiter, n int, now time.Time) time.Duration {
	missing := max(0, float64(n)-b.TokensAt(now))
	return time.Duration(missing / float64(b.Limit()) * float64(time.Second))
}

// rateOf is the rate of a bucket as text.
func rateOf(b *rate.Limiter) string {
	return Rate{PerSecond: float64(b.Limit()), Burst: b.Burst()}.String()
}
