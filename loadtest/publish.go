package loadtest

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/loadtest/stats"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A pool publishes on schedule over a few connections. A publish takes the one that
// has been free for the longest, so that all are in use as those of many clients
// are; if there is none it waits for the first that becomes free, and one more is
// opened meanwhile, up to a bound. A server may close a connection that is free
// (RFC 9112, section 9.5): that is counted, and no failure.
type pool struct {
	kit   publisherMaker
	loop  eventloop.Loop
	form  func(topic int) client.PublishForm
	limit int

	conns   map[*client.Publisher]*publisherConn
	free    []*publisherConn // the one that is free for the longest first
	waiting []publication    // first come, first served

	recordFrom time.Duration  // publishes due from then on are recorded
	lag        *stats.Latency // from the scheduled instant to the sending
	answer     *stats.Latency // from the scheduled instant to the answer
	published  int64          // sent, all of the test
	waited     int64          // of them, those that found no connection free
	idleClosed int64          // connections that the server closed while they were free
	underway   int            // sent and not answered
	held       int            // waiting for a connection of their own; see voices

	taken   func(m publication, p wire.Position) // a publish was, and has a position
	refused func(m publication, err error)       // a publish was not taken
	failed  func(err error)                      // a connection ended
}

// A publisherMaker makes connections' publishers; a client.Dialect does.
type publisherMaker interface {
	NewPublisher(events client.PublishEvents) *client.Publisher
}

type publisherConn struct {
	publisher *client.Publisher
	conn      eventloop.Conn
	sent      publication // the last
	opened    bool        // the connection was made
}

func newPool(kit publisherMaker, loop eventloop.Loop, limit int, form func(int) client.PublishForm) *pool {
	return &pool{
		kit:        kit,
		loop:       loop,
		form:       form,
		limit:      limit,
		conns:      map[*client.Publisher]*publisherConn{},
		recordFrom: never,
		lag:        stats.NewLatency(),
		answer:     stats.NewLatency(),
	}
}

// open dials one more connection.
func (p *pool) open() {
	c := &publisherConn{publisher: p.kit.NewPublisher(p)}
	p.conns[c.publisher] = c
	c.conn = p.loop.Dial(c.publisher)
}

// publish sends m, or has it wait.
func (p *pool) publish(m publication) {
	if len(p.free) > 0 {
		c := p.free[0]
		p.free = p.free[1:]
		c.conn.Send(p.request(c, m))
		return
	}
	p.waited++
	p.waiting = append(p.waiting, m)
	if len(p.conns) < p.limit {
		p.open()
	}
}

// request returns the bytes that publish m on c, at this moment.
func (p *pool) request(c *publisherConn, m publication) []byte {
	c.sent = m
	p.published++
	p.underway++
	if m.due >= p.recordFrom {
		p.lag.Record(p.loop.Now() - m.due)
	}
	return c.publisher.Publish(p.form(m.topic), m.payload)
}

// next gives a free connection something to do, if there is.
func (p *pool) next(c *publisherConn) []byte {
	if len(p.waiting) == 0 {
		p.free = append(p.free, c)
		return nil
	}
	m := p.waiting[0]
	p.waiting = p.waiting[1:]
	return p.request(c, m)
}

// unanswered returns how many publishes were sent or are waiting, and have no
// answer.
func (p *pool) unanswered() int { return p.underway + p.held + len(p.waiting) }

// Free is part of client.PublishEvents.
func (p *pool) Free(publisher *client.Publisher) []byte {
	c := p.conns[publisher]
	c.opened = true
	return p.next(c)
}

// Answered is part of client.PublishEvents.
func (p *pool) Answered(publisher *client.Publisher, position wire.Position, refusal error, now time.Duration) {
	p.underway--
	m := p.conns[publisher].sent
	if refusal != nil {
		p.refused(m, refusal)
		return
	}
	p.taken(m, position)
	if m.due >= p.recordFrom {
		p.answer.Record(now - m.due)
	}
}

// Closed is part of client.PublishEvents.
func (p *pool) Closed(publisher *client.Publisher, err error) {
	c := p.conns[publisher]
	delete(p.conns, publisher)
	if i := slices.Index(p.free, c); i >= 0 {
		p.free = slices.Delete(p.free, i, i+1)
	}
	if publisher.Busy() {
		p.underway--
	}
	if c.opened && !publisher.Busy() && closedInOrder(err) {
		p.idleClosed++
	} else {
		p.failed(err)
	}
	// What waits for this connection gets another. One that was never made is not
	// tried again: whoever refuses it would refuse the next, without end.
	if c.opened && len(p.waiting) > 0 && len(p.conns) < p.limit {
		p.open()
	}
}

// closedInOrder tells a server that does not want a free connection any more from
// one that says what it should not.
func closedInOrder(err error) bool {
	return errors.Is(err, eventloop.ErrServerClosed) || errors.Is(err, syscall.ECONNRESET)
}
