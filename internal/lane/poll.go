package lane

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A poll is the poll that a connection answers, if one is begun.
type poll struct {
	answer  transport.Answer // lent with the output
	state   pollState
	session *session.Session // of the last poll: most connections have one

	client   *clientContext  // nil until a goroutine waits
	waitFunc func()          // conn.wait; bound once: a poll should allocate nothing
	became   transport.State // what wait found
	err      error           // likewise
}

// A pollState is where a poll is.
type pollState uint8

const (
	noPoll  pollState = iota
	begun             // it can continue
	parked            // the output is lent to the session
	waiting           // the output is lent to a goroutine, or a call is made aside
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

// stepPoll continues the poll, and reports whether one was begun.
func (c *conn) stepPoll() bool {
	if c.state != begun {
		return false
	}
	c.settlePoll(c.answer.Go(c.filled > 0 || c.lane.draining.Load()))
	return true
}

// settlePoll notes what became of the poll.
func (c *conn) settlePoll(state transport.State, err error) {
	switch state {
	case transport.Parked:
		c.state = parked
	case transport.Waiting:
		c.state = waiting
		c.makeClient()
		c.lane.running.Add(1)
		go c.waitFunc()
	case transport.Continues:
		c.state = begun
		if c.talk != nil {
			c.talk.wroteFrames = true
		}
	case transport.Over:
		c.endPoll(err)
	}
}

// makeClient makes what goroutines need that wait for the connection.
func (c *conn) makeClient() {
	if c.client == nil {
		c.client = &clientContext{done: make(chan struct{})}
		c.waitFunc = c.wait
	}
}

// wait is the goroutine of a poll that waits on its session's queue. It owns the output
// and the answer until its letter.
func (c *conn) wait() {
	defer c.lane.running.Done()
	c.became, c.err = c.answer.Wait(c.client)
	c.loop.post(c, (*conn).waited)
}

func (c *conn) waited() { c.settlePoll(c.became, c.err) }

// takeBack takes a parked poll back from its session.
func (c *conn) takeBack() {
	if c.state != parked {
		return
	}
	c.state = begun
	if c.answer.Unpark() {
		c.closeSession()
		c.answered()
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

// closeSession ends a poll's time on the connection, with its session if that is the
// poll's own.
func (c *conn) closeSession() {
	c.state = noPoll
	if c.session.ID() == "" {
		c.lane.app.End(c.session)
		c.session = nil
	}
}

// endPoll answers a poll that has ended with err, if anything is left to say.
func (c *conn) endPoll(err error) {
	c.closeSession()
	problem, ok := errors.AsType[*wire.Problem](err)
	switch {
	case c.talk != nil:
		c.act(c.talk.Conversation.End(err))
	case c.chunked, c.format == frame.EventStream: // also one that has not begun; see mayReconnect in httpapi
		if err != nil && c.answer.EndStream(err) != nil || c.endChunks() != nil {
			c.ending = closing
		}
		c.answeredBy(ok && problem.Code == wire.CodeDraining)
	case err == nil:
		c.answered()
	case ok:
		c.fail(err)
	default:
		c.ending = closing
	}
}

// answered ends the connection's time after an answer, if the lane drains.
func (c *conn) answered() { c.answeredBy(false) }

// answeredBy is answered, or with last after the last answer.
func (c *conn) answeredBy(last bool) {
	if c.ending == staying && (last || c.lane.draining.Load()) {
		c.ending = lastAnswer
	}
}

// A clientContext is done when the client has left. A context.WithCancel for each
// connection would cost three times as much.
type clientContext struct {
	once sync.Once
	done chan struct{}
}

func (c *clientContext) leave() { c.once.Do(func() { close(c.done) }) }

// Deadline implements context.Context.
func (c *clientContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *clientContext) Done() <-chan struct{} { return c.done }

// Err implements context.Context.
func (c *clientContext) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context.
func (c *clientContext) Value(any) any { return nil }
