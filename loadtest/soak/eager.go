package soak

import (
	"context"
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An eager publisher has a topic of its own, whose rate it exceeds: it publishes until
// it is told that it comes too often, and then again when it was told to, which must do.
type eager struct{ *publisher }

// eagerTopics is how many there are: the first of all topics. Nobody else publishes to
// them, but everyone may subscribe.
const eagerTopics = 2

// firstEager is the number of the publisher of the first topic.
const firstEager = firstHurried - eagerTopics

func newEager(w *world, topic int) (*eager, error) {
	p, err := newPublisher(w, firstEager+topic, pubsub.WithPublishRetry(0))
	return &eager{p}, err
}

// run publishes until ctx ends.
func (e *eager) run(ctx context.Context, topic int) {
	defer e.transport.CloseIdleConnections()
	for ctx.Err() == nil {
		if err := e.rush(ctx, topic); err != nil {
			e.insist(ctx, topic, err)
		}
		_ = sleep(ctx, time.Duration(200+e.rng.IntN(800))*time.Millisecond)
	}
}

// longestRush is several times what the rate allows at once.
const longestRush = 6 * eagerBurst

// rush publishes without a pause until the daemon does not take a message, and returns
// what it said; nil if it took all. It finds fault if that were more than it may.
func (e *eager) rush(ctx context.Context, topic int) (err error) {
	began, daemon, taken := time.Now(), e.world.reign.number.Load(), 0
	for n := 0; n < longestRush && err == nil && ctx.Err() == nil; n++ {
		if err = e.offer(ctx, topic); err == nil {
			taken++
		}
	}
	took := time.Since(began)
	if most := mostOf(took); taken > most && e.world.reign.number.Load() == daemon {
		e.fault(Limit, topic, "%d messages were accepted within %v; the limit is %d", taken, took, most)
	}
	return err
}

// mostRefusals is how often who comes when it was told to may be told to come again.
const mostRefusals = 20

// insist publishes to a topic until a message is taken, after err was answered: each
// time when it was told to.
func (p *publisher) insist(ctx context.Context, topic int, err error) {
	for refusals := 0; err != nil && ctx.Err() == nil; {
		wait := time.Duration(100+p.rng.IntN(400)) * time.Millisecond // nobody may be there
		if problem, ok := errors.AsType[*wire.Problem](err); ok && isLimit(problem) {
			if refusals++; refusals > mostRefusals {
				p.fault(Limit, topic, "was refused %d times, each time after waiting as told: %v", refusals, err)
				return
			}
			wait = p.told(topic, problem)
		}
		if sleep(ctx, wait) != nil {
			return
		}
		if err = p.offer(ctx, topic); err == nil && refusals > 0 {
			p.world.published.heeded.Add(1)
		}
	}
}

// isLimit reports whether a problem is a limit's: one client has too much, or all have.
func isLimit(problem *wire.Problem) bool {
	return problem.Code == wire.CodeLimited || problem.Code == wire.CodeOverloaded
}

// told returns when to come again, which every refusal must say.
func (p *publisher) told(topic int, problem *wire.Problem) time.Duration {
	counter := &p.world.published.limited
	if problem.Code == wire.CodeOverloaded {
		counter = &p.world.published.overloaded
	}
	counter.Add(1)
	if problem.RetryAfterMS <= 0 {
		p.fault(Limit, topic, "was refused without a time to retry: %v", problem)
	}
	return time.Duration(problem.RetryAfterMS) * time.Millisecond
}
