package pubsub

import (
	"context"
	"sync"
	"time"
)

// A clock measures durations by two clocks, and believes the larger: the monotonic one does not
// count the time that the machine was suspended (Linux), and the wall clock can be set back.
type clock struct {
	wall func() time.Time // for tests; without a monotonic reading
}

func newClock() clock { return clock{func() time.Time { return time.Now().Round(0) }} }

// An instant is what both clocks said.
type instant struct{ monotonic, wall time.Time }

func (c clock) now() instant { return instant{time.Now(), c.wall()} }

func (c clock) since(i instant) time.Duration {
	return max(time.Since(i.monotonic), c.wall().Sub(i.wall))
}

// lookInterval is how often an alarm looks at the wall clock: so late may it be after a suspend.
const lookInterval = 2 * time.Second

// An alarm calls ring when a time has passed by either clock. A time.Timer knows only one of
// them. Its methods may be called concurrently.
type alarm struct {
	clock clock
	ring  func()

	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	set   instant
	after time.Duration
	armed bool
}

// alarm returns an alarm that is not set.
func (c clock) alarm(ring func()) *alarm { return &alarm{clock: c, ring: ring} }

// Reset sets the alarm, whether it was set or not.
func (a *alarm) Reset(after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set, a.after, a.armed = a.clock.now(), after, true
	if a.timer == nil {
		a.timer = time.AfterFunc(min(after, lookInterval), a.look)
	} else {
		a.timer.Reset(min(after, lookInterval))
	}
}

func (a *alarm) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.armed = false; a.timer != nil {
		a.timer.Stop()
	}
}

func (a *alarm) look() {
	if a.isDue() {
		a.ring()
	}
}

func (a *alarm) isDue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.armed {
		return false
	}
	left := a.after - a.clock.since(a.set)
	if left > 0 {
		a.timer.Reset(min(left, lookInterval))
		return false
	}
	a.armed = false
	return true
}

// passed returns what is closed after d.
func (c clock) passed(d time.Duration) (<-chan struct{}, *alarm) {
	passed := make(chan struct{})
	a := c.alarm(func() { close(passed) })
	a.Reset(d)
	return passed, a
}

// sleep waits for d, or for the end of ctx, and then returns why it ended.
func (c clock) sleep(ctx context.Context, d time.Duration) error {
	passed, a := c.passed(d)
	defer a.Stop()
	select {
	case <-passed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
