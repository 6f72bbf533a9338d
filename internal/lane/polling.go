package lane

import (
	"errors"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// polling is where the connection's poll is.
type polling uint8

const (
	noPoll  polling = iota
	begun           // it can go on
	parked          // on the connection; only Unpark tells what became of it
	waiting         // in a goroutine, to which the output and the answer belong
)

// takeBack takes the poll back that is parked, if one is.
func (c *conn) takeBack() {
	if c.polling != parked {
		return
	}
	c.polling = begun
	if c.answer.Unpark() {
		c.polled()
		c.answered()
	}
}

// polled ends a poll's time on the connection, with what a poll without a session
// had for one.
func (c *conn) polled() {
	c.polling = noPoll
	if c.stateless != nil {
		c.lane.app.End(c.stateless)
		c.stateless = nil
	}
}

// answered ends the connection's time after an answer, if the lane drains.
func (c *conn) answered() { c.maybeFinish(c.lane.draining.Load()) }

// maybeFinish ends the connection's time if its answer was the last.
func (c *conn) maybeFinish(last bool) {
	if last && c.fate == staying {
		c.fate = finishing
	}
}

// became goes on according to what became of the poll.
func (c *conn) became(state transport.State, err error) {
	switch state {
	case transport.Parked:
		c.polling = parked
	case transport.Waiting:
		c.polling = waiting
		if c.gone == nil {
			c.gone = &gone{done: make(chan struct{})}
			c.waitFunc = c.wait
		}
		c.lane.running.Add(1)
		go c.waitFunc()
	case transport.Continues:
		c.polling = begun
		if c.duplex != nil {
			c.duplex.wroteFrames = true
		}
	case transport.Over:
		c.polled()
		c.end(err)
	}
}

// wait is the goroutine of a poll that parks on its session's queue. It owns the output
// and the answer until its letter.
func (c *conn) wait() {
	defer c.lane.running.Done()
	c.waited, c.waitErr = c.answer.Wait(c.gone)
	c.loop.post(c, (*conn).takeWaited)
}

func (c *conn) takeWaited() {
	c.polling = begun
	c.became(c.waited, c.waitErr)
}

// end answers a poll that has ended with err, if anything is left to say.
func (c *conn) end(err error) {
	problem, ok := errors.AsType[*wire.Problem](err)
	switch {
	case c.duplex != nil:
		c.act(c.duplex.Conversation.End(err))
	case c.chunked, c.format == frame.EventStream: // also one that has not begun; see mayComeBack in httpapi
		c.endInParts(err)
		c.maybeFinish(ok && problem.Code == wire.CodeDraining)
	case err == nil:
		c.answered()
	case ok:
		c.fail(err)
	default:
		c.fate = closing
	}
}

// endInParts ends an answer of unknown length, with the reason if there is one.
func (c *conn) endInParts(why error) {
	if why != nil && c.answer.EndStream(why) != nil || c.endChunks() != nil {
		c.fate = closing
		return
	}
	c.answered()
}
