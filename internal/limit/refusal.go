package limit

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Refusal is a problem for a client that has too much of something. It is to be
// told after Hold: a client that goes on as if it had not been told comes back at
// once, and would make refusing it the daemon's main occupation.
type Refusal struct {
	*wire.Problem
	Limit string // its name, as metrics label it
	Hold  time.Duration
}

// Unwrap returns the problem.
func (r *Refusal) Unwrap() error { return r.Problem }

// refuse counts a refusal of w, and says when it is to be told.
func (l *Limiter) refuse(w Who, now time.Time, r *Refusal) error {
	l.metrics.Limited.WithLabelValues(r.Limit).Inc()
	if w.source != nil && !w.source.heeds(now) {
		r.Hold = l.force.Load().Wait
	}
	return r
}

// Hold waits until r is to be told, or Release. It reports false if ctx has ended
// before, or so many are held that the client has to go without an answer.
func (l *Limiter) Hold(ctx context.Context, r *Refusal) bool {
	if r.Hold <= 0 {
		return true
	}
	defer l.held.Add(-1)
	if l.held.Add(1) > int64(l.force.Load().WaitingCalls) {
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

// Release has every refusal told at once from now on, also those that are held: their
// clients are to go.
func (l *Limiter) Release() { l.release() }

// rateName is what metrics and problems call the rate of a kind in a scope.
func rateName(kind Kind, scope Scope) string { return "rates." + kind.String() + "." + scope.String() }

func (r Rule) rateName() string { return "topics." + r.Name + ".rate" }

// tooOften is the refusal of n calls for which a bucket holds too little.
func tooOften(kind Kind, n int, scope Scope, b *rate.Limiter, now time.Time) *Refusal {
	name := rateName(kind, scope)
	whose := map[Scope]string{Address: "from your address", Principal: "of yours", All: "of all clients together"}[scope]
	if most := b.Burst(); n > most {
		return &Refusal{Limit: name, Problem: later(untilTokens(b, most, now), fmt.Sprintf("name at most %d at a time, or raise %s", most, name),
			"%d %s are more than may come at once %s: %s", n, kind, whose, rateOf(b))}
	}
	return &Refusal{Limit: name, Problem: later(untilTokens(b, n, now), "wait as retry_after_ms says, or raise "+name,
		"%s come too often %s: %s", kind, whose, rateOf(b))}
}

func tooOftenToTopics(rule *ruled, now time.Time) *Refusal {
	name := rule.rateName()
	return &Refusal{Limit: name, Problem: later(untilTokens(rule.bucket, 1, now), "wait as retry_after_ms says, or raise "+name,
		"messages come too often to the topics of %s: %s", rule.Pattern, rateOf(rule.bucket))}
}

// tooMany is the refusal of one more of what an address has.
func tooMany(limit, what string, most int) *Refusal {
	return &Refusal{Limit: limit, Problem: later(time.Second, "use fewer at a time, or raise limits."+limit,
		"your address has %d %s, as many as it may", most, what)}
}

// TooManyPending is the refusal of one more publish of a session's.
func (l *Limiter) TooManyPending(w Who) error {
	const name = "pending_messages_per_session"
	most := l.force.Load().PendingMessages
	return l.refuse(w, time.Now(), &Refusal{Limit: name, Problem: later(time.Second, "await the answers to some of them, or raise limits."+name,
		"the session has %d publishes in flight, as many as it may", most)})
}

// full is the refusal of one more of what all have.
func full(limit, what string, most int) *Refusal {
	return &Refusal{Limit: limit, Problem: wire.NewProblem(wire.CodeOverloaded, "retry later, or raise limits."+limit,
		"the daemon has %d %s, as many as it may", most, what).Retry(time.Second)}
}

func later(after time.Duration, remedy, detail string, args ...any) *wire.Problem {
	return wire.NewProblem(wire.CodeLimited, remedy, detail, args...).Retry(after)
}

// untilTokens is how long it takes until a bucket holds enough for n more.
func untilTokens(b *rate.Limiter, n int, now time.Time) time.Duration {
	missing := max(0, float64(n)-b.TokensAt(now))
	return time.Duration(missing / float64(b.Limit()) * float64(time.Second))
}

// rateOf is a bucket's rate in words.
func rateOf(b *rate.Limiter) string {
	return Rate{PerSecond: float64(b.Limit()), Burst: b.Burst()}.String()
}
