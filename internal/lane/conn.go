package lane

import (
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A conn is one connection on the lane. Its loop owns it, and takes steps whenever
// something has happened to it, as many as it can without waiting. A connection with
// nothing to do holds no buffer and no goroutine.
//
// With one exception: the loop lends the output, with the answer of its poll, while a
// poll waits. It lends them to the session on which the poll is parked, under whose lock
// frames are handed over (session.Outlet). Or it lends them to a goroutine that waits on
// the session's queue; see Config.HandOff.
type conn struct {
	output // where answers go
	poll   // the poll that is answered
	input  // what was read

	loop    *loop             // immutable
	counted *limit.Connection // immutable; goes with the descriptor
	who     limit.Who         // sent the last request

	// The connection's work is one of these.
	requests requests
	talk     *conversation // nil: it carries requests

	ending   ending
	awaits   awaited
	due      int64 // until when, in seconds of the lane's age
	space    bool  // the loop hears of space for writing
	resuming bool  // a letter is about to continue it
}

// An ending is how a connection leaves the lane.
type ending uint8

const (
	staying    ending = iota
	lastAnswer        // closing, once the answer is written
	closing
	returning // to net/http, with what was read
	left
)

// awaited is what a connection waits for, each with a bound:
//
//	awaited    at most       counted from            and then
//	itsTurn    Idle          its last turn           closing
//	aFrame     Idle          when last heard of      looking what it waits for now
//	 or                      see Conversation        what the Conversation says
//	aRequest   Idle          when last heard of      closing
//	theRest    restTimeout   its request's begin     returning
//	space      WriteTimeout  its write               closing
type awaited uint8

const (
	itsTurn awaited = iota
	aFrame          // or anything else that ends a poll
	aRequest
	theRest // of a request
	space   // for the rest of an answer
	awaits  // how many there are
)

// What a loop hears of: something arrived, the client has ended its side, or there is
// space for writing.
const (
	heardArrival = 1 << iota
	heardEnd
	heardSpace
)

// happened handles what the loop heard.
func (c *conn) happened(what uint32) {
	c.unread = c.unread || what&(heardArrival|heardEnd) != 0
	c.ended = c.ended || what&heardEnd != 0
	c.proceed()
}

// Wake implements transport.Parking. Sessions call it under their locks.
func (c *conn) Wake() { c.loop.post(c, (*conn).takeBack) }

// Left implements session.Client: a poll that is not done keeps the descriptor open.
func (c *conn) Left() bool { return listen.PeerLeft(c.fd) }

// turn is how many steps a connection takes before others have their turn: a client may
// send requests, or read a stream, as fast as they are served.
const turn = 64

// proceed takes steps: it writes what waits, serves what was read, continues the poll,
// and reads. What was read ahead of an answer is served once that is written.
func (c *conn) proceed() {
	for range turn {
		if c.ending > lastAnswer || c.isLent() || !c.isFlushed() {
			c.settle()
			return
		}
		if !c.work() && !c.stepPoll() && !c.read() {
			c.settle()
			return
		}
	}
	c.await(itsTurn)
	c.loop.tired = true
	if !c.resuming {
		c.resuming = true
		c.loop.post(c, (*conn).resume)
	}
}

func (c *conn) resume() { c.resuming = false }

// isLent reports whether the output is lent. A client that sends something takes it back
// from a session.
func (c *conn) isLent() bool {
	if c.state == parked {
		c.read()
	}
	return c.state >= parked
}

// isFlushed reports whether the client has taken what waited for it.
func (c *conn) isFlushed() bool {
	if c.Blocked() {
		c.flush()
		if c.Blocked() {
			return false
		}
		c.awaits = itsTurn
	}
	if c.failed {
		c.ending = closing
	}
	return !c.failed
}

// work does what was read, and reports whether there was anything to do.
func (c *conn) work() bool {
	if c.talk != nil {
		return c.converse()
	}
	return c.serve()
}

// read reads once, and reports whether the client has sent something: most often the
// next poll, because it has the answer that was handed over.
func (c *conn) read() bool {
	if !c.mayRead() {
		return false
	}
	n, over := c.input.read(c.fd)
	if over {
		c.ending = closing
	}
	if n == 0 {
		return false
	}
	c.readAt = time.Since(c.lane.begun)
	c.lane.metrics.BytesIn.Add(float64(n))
	if c.talk != nil {
		c.talk.wroteFrames = false
	}
	c.takeBack()
	return true
}

// consume takes the first n bytes off what was read.
func (c *conn) consume(n int) {
	c.filled = copy(c.buf[:], c.buf[n:c.filled])
	c.awaits = itsTurn
}

// mayRead reports whether reading is of use. Nothing is read behind a delayed refusal,
// and only one buffer behind a command that waits.
func (c *conn) mayRead() bool {
	switch {
	case !c.unread || c.filled == bufferBytes:
		return false
	case c.talk != nil:
		return c.filled == 0 || !c.talk.Conversation.Busy()
	}
	return c.requests.refusal == nil
}

// settle ends the connection's turn: it leaves, or notes what it waits for.
func (c *conn) settle() {
	c.maybeRelease()
	draining := c.lane.draining.Load()
	stays := true
	switch {
	case c.state == waiting: // it can leave when the goroutine is done
		if c.ended {
			c.client.leave()
		}
		c.await(aFrame)
	case c.ending > lastAnswer, c.ended && c.filled == bufferBytes:
		stays = false
	case c.state == parked:
		c.await(aFrame)
	case c.Blocked():
		stays = c.awaitSpace()
	case c.talk != nil:
		c.await(aFrame)
	case c.requests.refusal != nil:
		c.await(itsTurn)
	case draining:
		stays = false
	case c.filled > 0:
		c.await(theRest)
	default:
		c.await(aRequest)
	}
	if !stays {
		c.leave()
	}
}

// await notes what the connection waits for. The rest of something has one bound, which
// no further piece of it extends.
func (c *conn) await(what awaited) {
	if what == c.awaits && what > aRequest {
		return
	}
	c.awaits = what
	c.due = c.lane.age() + c.lane.patience[what].Load()
	if what == aFrame && c.talk != nil {
		if at := c.talk.Conversation.Due(); !at.IsZero() {
			c.due = min(c.due, int64(at.Sub(c.lane.begun)/time.Second))
		}
	}
}

// awaitSpace is await for the client to read. It reports whether the loop hears of that.
func (c *conn) awaitSpace() bool {
	c.await(space)
	if c.space {
		return true
	}
	c.space = true
	return c.loop.watch(c.fd, andSpace) == nil
}

// overdue ends what the connection has waited for too long.
func (c *conn) overdue() {
	switch c.awaits {
	case aFrame:
		if c.talk != nil && c.state != waiting {
			c.overdueInConversation()
		}
		// To take back a poll that is still parked would put its heartbeat off.
		if c.state == parked && !c.answer.IsParked() {
			c.takeBack()
		}
	case theRest:
		c.ending = returning
	case space:
		c.lane.metrics.Ended(metrics.SlowReader)
		c.ending = closing
	default:
		c.ending = closing
	}
}

// close closes the connection. A goroutine that waits for it is told.
func (c *conn) close() {
	c.ending = closing
	if c.state == waiting {
		c.client.leave()
	}
}

// leave ends the connection's time on the lane.
func (c *conn) leave() {
	c.abandonPoll()
	if c.talk != nil {
		c.talk.end()
	}
	c.dropBacklog()
	c.loop.leave(c)
	if c.ending == returning {
		c.handBack()
	} else {
		c.release()
		c.hangUp()
	}
	c.ending = left
	c.lane.forget()
}

// Client implements memory.Owner. The borrower of the output calls it; while it is lent
// no request is read.
func (c *conn) Client() *memory.Client {
	if c.talk != nil {
		return c.talk.Conversation.Client()
	}
	return c.who.Client()
}

// CutOff implements memory.Owner.
func (c *conn) CutOff() { c.loop.post(c, (*conn).cutOff) }

func (c *conn) cutOff() {
	c.lane.metrics.Ended(metrics.SlowReader)
	c.close()
}

// hangUp closes the descriptor, which nobody uses any more.
func (c *conn) hangUp() {
	closeFD(c.fd)
	c.counted.Leave()
}
