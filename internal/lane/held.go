package lane

import (
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A held problem is an answer that is told later, to a client that does not wait as it
// is told (limit.Refusal). Until then nothing is read from its connection, which costs
// no goroutine and no timer: the lane looks at those that are held with each Tick.
type held struct {
	problem *wire.Problem
	until   time.Time
}

// refused returns the problem that err is, or nil: then the request is for net/http.
func refused(err error) *wire.Problem {
	problem, _ := errors.AsType[*wire.Problem](err)
	return problem
}

// refuse answers with the problem that err is, now or later.
func (c *conn) refuse(err error) {
	refusal, ok := errors.AsType[*limit.Refusal](err)
	if !ok || refusal.Hold <= 0 || c.lane.draining.Load() {
		c.problem(refused(err))
		return
	}
	c.held = &held{refusal.Problem, time.Now().Add(refusal.Hold)}
	c.lane.hold(c)
}

// tell tells what was held.
func (c *conn) tell() {
	problem := c.held.problem
	c.held = nil
	c.problem(problem)
}

// hold lists c, for tellHeld.
func (l *Lane) hold(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[c] = c.held.until
}

// tellHeld has those problems told whose time has come.
func (l *Lane) tellHeld(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, until := range l.held {
		if !now.Before(until) {
			delete(l.held, c)
			c.attend(func(c *conn) {
				if c.held != nil && c.fate == staying {
					c.tell()
				}
			})
		}
	}
}
