package lane

import (
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A held problem is an answer that is told later, to a client that does not wait as it
// is told (limit.Refusal). Until then nothing is read from its connection, which costs
// no goroutine and no timer: the loop looks at those that are held with each Tick.
type held struct {
	problem *wire.Problem
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
	c.held = &held{refusal.Problem}
	c.loop.delay(c, time.Now().Add(refusal.Hold))
}

// tell tells what was held.
func (c *conn) tell() {
	problem := c.held.problem
	c.held = nil
	c.problem(problem)
}

// tellHeld is tell when the time has come.
func (c *conn) tellHeld() {
	if c.held != nil && c.fate == staying {
		c.tell()
	}
}
