package pubsub

import (
	"math/rand/v2"
	"time"
)

// firstBackoff is what the first failure costs at most. It is also what a
// restarted daemon's clients are spread over.
const firstBackoff = 200 * time.Millisecond

// foreignFactor is how many times longer the longest wait is after an answer that is not the
// daemon's: 30 s by default. People have to mend what gives such answers.
const foreignFactor = 3

// A backoff says how long to wait before the next attempt: between half and all
// of a bound that doubles with every failure. The zero value of failures is a
// fresh start. It is for one goroutine.
type backoff struct {
	failures int // since the last success
	max      time.Duration
}

func (b *backoff) reset() { b.failures = 0 }

// next counts a failure and returns the wait. It is never shorter than what the
// daemon asked for (asked, or 0), which the daemon spreads itself.
func (b *backoff) next(asked time.Duration) time.Duration {
	bound := firstBackoff
	for range b.failures {
		if bound *= 2; bound >= b.max {
			break
		}
	}
	b.failures++
	bound = min(bound, b.max)
	return max(asked, bound/2+rand.N(bound/2+1))
}
