package main

import (
	"time"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A broadcaster publishes a message each period, one after the other, on a
// connection of its own. What is refused it sends again: it counts, and its latency
// runs from when it was due.
type broadcaster struct {
	crowd *crowd
	form  client.PublishForm
	conn  eventloop.Conn
	there bool              // conn is, or will be
	idle  *client.Publisher // the connection's, while it has nothing to do; nil: busy, or not there

	begun    bool
	origin   time.Duration // when message 1 is due
	sent     int           // messages that were sent at least once
	answered int           // messages that were taken
	notUntil time.Duration // a message that was refused is not sent again before
}

func newBroadcaster(c *crowd) *broadcaster {
	return &broadcaster{crowd: c, form: c.kit.PublishForm(c.topic)}
}

func (b *broadcaster) start(now time.Duration) {
	b.begun = true
	b.origin = now + period
}

// maybeOpen connects, unless there is a connection or one has just failed.
func (b *broadcaster) maybeOpen(now time.Duration) {
	if !b.there && now >= b.notUntil {
		b.there = true
		b.conn = b.crowd.loop.Dial(b.crowd.kit.NewPublisher(b))
	}
}

// instant is when a message is due.
func (b *broadcaster) instant(number int) time.Duration {
	return b.origin + time.Duration(number-1)*period
}

// next is the number of the message that is due next, of those that nobody has sent.
func (b *broadcaster) next() int {
	return max(b.sent+1, int((b.crowd.loop.Now()-b.origin)/period)+2)
}

// due sends what is due, and returns when the next will be.
func (b *broadcaster) due(now time.Duration) time.Duration {
	if !b.begun {
		return now + period
	}
	b.maybeOpen(now)
	next := max(b.instant(b.answered+1), b.notUntil)
	switch {
	case now < next:
		return next
	case b.idle == nil:
		return now + orderly
	}
	p := b.idle
	b.idle = nil
	b.conn.Send(b.send(p, now))
	return now + orderly
}

// send is of the oldest message that was not taken.
func (b *broadcaster) send(p *client.Publisher, now time.Duration) []byte {
	number := b.answered + 1
	if number > b.sent {
		b.sent = number
		b.crowd.found.Lag.Record(now - b.instant(number))
	}
	return p.Publish(b.form, b.crowd.write(number))
}

// Free is part of client.PublishEvents.
func (b *broadcaster) Free(p *client.Publisher) []byte {
	b.idle = p
	return nil
}

// Answered is part of client.PublishEvents.
func (b *broadcaster) Answered(_ *client.Publisher, _ wire.Position, refusal error, now time.Duration) {
	if refusal == nil {
		b.answered++
		return
	}
	b.crowd.fails(refusal)
	b.crowd.found.Refused++
	b.notUntil = now + retries
}

// Closed is part of client.PublishEvents. A publish without an answer may have been
// taken: sent again it may come twice, which would count, and rightly.
func (b *broadcaster) Closed(p *client.Publisher, err error) {
	if p.Busy() {
		b.crowd.found.Refused++
		b.crowd.fails(err)
	}
	b.idle, b.there = nil, false
	b.notUntil = b.crowd.loop.Now() + retries
}
