package lane

import (
	"errors"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A poll is the poll that a connection answers, if any.
type poll struct {
	answer  transport.Answer // lent with the output
	state   pollState
	session *session.Session // of the last poll: most connections have only one

	waits *waiter // nil until something waits beside the loop
}

// A pollState is the state of a connection's poll.
type pollState uint8

const (
	noPoll  pollState = iota
	begun             // it can continue
	parked            // the output is lent to the session
	waiting           // the output is lent to a goroutine, or a call runs aside
)

// beginPoll begins a poll of s.
func (c *conn) beginPoll(s *session.Session, req transport.Request) {
	c.session = s
	c.format, c.gzip = req.Format, req.Gzip
	req.Client = c
	if err := c.answer.Begin(s, req); err != nil {
		c.endPoll(err)
		return
	}
	c.state = begun
}

// continuePoll continues a poll that was begun.
func (c *conn) continuePoll() {
	c.noteState(c.answer.Go(c.filled > 0 || c.lane.draining.Load() || c.entry != nil)) // an entry ends with its answer
}

// noteState notes the new state of the poll.
func (c *conn) noteState(state session.State, err error) {
	switch state {
	case session.Parked:
		c.state = parked
	case session.Waiting:
		c.state = waiting
		c.lane.running.Add(1)
		go c.makeWaiter().run()
	case session.Continues:
		c.state = begun
		if c.talk != nil {
			c.talk.wroteFrames = true
		}
	case session.Over:
		c.endPoll(err)
	}
}

// wait is the goroutine of a poll that waits on its session's queue. It has the output and
// the answer until it posts its letter.
func (c *conn) wait() {
	defer c.lane.running.Done()
	c.waits.became, c.waits.err = c.answer.Wait(c.waits.client)
	c.loop.post(c, func(c *conn) { c.noteState(c.waits.became, c.waits.err) })
}

// takeBack takes a parked poll back from its session.
func (c *conn) takeBack() {
	if c.state != parked {
		return
	}
	c.state = begun
	if c.answer.Unpark() {
		c.closeSession()
		c.answered(false)
	}
}

// abandonPoll ends the poll because its connection leaves.
func (c *conn) abandonPoll() {
	if c.state == begun || c.state == parked && !c.answer.Unpark() {
		c.answer.Abandon()
	}
	if c.state != noPoll {
		c.closeSession()
	}
}

// closeSession ends the poll, and its session if that belongs to this poll alone.
func (c *conn) closeSession() {
	c.state = noPoll
	if c.session.ID() == "" {
		c.lane.cfg.App.End(c.session)
		c.session = nil
	}
}

// endPoll ends a poll with err, and writes the rest of its answer, if any.
func (c *conn) endPoll(err error) {
	c.closeSession()
	problem, ok := errors.AsType[*wire.Problem](err)
	switch {
	case c.talk != nil:
		c.act(c.talk.End(err))
	case c.chunked, c.format == frame.EventStream: // also an event stream without a first byte; see mayReconnect in httpapi
		failed := err != nil && c.answer.EndStream(err) != nil || c.write(part{bytes: lastChunk}) != nil
		if c.chunked = false; failed {
			c.ending = closing
		}
		c.answered(ok && problem.Code == wire.CodeDraining)
	case err == nil:
		c.answered(false)
	case ok:
		c.fail(err)
	default:
		c.ending = closing
	}
}
