package lane

import (
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
)

// A held answer is a refusal that is told later, to a client that does not wait as it
// is told (limit.Refusal). Until then nothing is read from its connection, which costs
// no goroutine and no timer: the loop looks at those that are held with each Tick.
type held struct {
	why error
}

// refuse answers with what err says, now or later.
func (c *conn) refuse(err error) {
	refusal, ok := errors.AsType[*limit.Refusal](err)
	if !ok || refusal.Hold <= 0 || c.lane.draining.Load() {
		c.fail(err)
		return
	}
	c.held = &held{err}
	c.loop.delay(c, time.Now().Add(refusal.Hold))
}

// tell tells what was held.
func (c *conn) tell() {
	why := c.held.why
	c.held = nil
	c.fail(why)
}

// tellHeld is tell when the time has come.
func (c *conn) tellHeld() {
	if c.held != nil && c.fate == staying {
		c.tell()
	}
}
