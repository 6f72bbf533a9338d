package lane

import (
	"bytes"
	"sync"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// bufferBytes is the longest request that the lane reads.
const bufferBytes = 8 << 10

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// A conn is one connection on the lane. Its loop owns it and does everything that can
// be done without waiting (goOn), whenever something has happened to it. A connection
// with nothing to do holds no buffer and no goroutine.
//
// With one exception: the loop lends the output and the answer while a poll waits. It
// lends them to the session on which the poll is parked, under whose lock frames are
// handed over (session.Outlet), until Unpark. Or it lends them to a goroutine that
// parks on the session's queue (wait), until its letter; see Config.HandOff.
type conn struct {
	output // lent with answer

	loop *loop       // immutable
	seat *limit.Seat // immutable; goes with the descriptor
	who  limit.Who   // sent the last request

	fate    fate
	gone    *gone              // done when the client has ended its side; made when a goroutine waits
	ended   bool               // it has
	unread  bool               // there is something to read, or was
	partial bool               // what is in buf is no whole request
	buf     *[bufferBytes]byte // nil while there is nothing to serve
	filled  int                // bytes of buf that are read and not served
	readAt  time.Duration      // when the last of them were read, after lane.begun
	blanks  int                // bytes of line ends that may come before the next request
	parser  parser

	answer    transport.Answer
	polling   polling
	waitFunc  func()           // wait; bound once: a goroutine a poll should not allocate
	waited    transport.State  // what wait found
	waitErr   error            // likewise
	known     *session.Session // of the last poll: most connections have one
	stateless *session.Session // of the poll, if it has none of its own; ended with it

	awaited  awaited
	due      int64 // until when, in seconds of the lane's age
	space    bool  // the loop hears of space for writing
	resuming bool  // a letter is about to go on with it

	held    *held   // nil: no answer is held back
	served  uint32  // requests since it came to the lane
	strikes uint8   // how often it was taken over for next to nothing, in a row
	duplex  *duplex // nil: it carries requests
}

// A fate is how a connection's time on the lane ends.
type fate uint8

const (
	staying   fate = iota
	finishing      // closing, once the answer is written
	closing
	returning // to net/http, with what is in buf
	left
)

// awaited is what a connection waits for, each with a bound:
//
//	awaited    at most       counted from            and then
//	nothing    Idle          its last turn           closing
//	aFrame     Idle          when last heard of      whichever it finds it waits for
//	 or                      see Conversation        what the Conversation says
//	aRequest   Idle          when last heard of      closing
//	theRest    restTimeout   its request's begin     returning
//	space      WriteTimeout  its write               closing
type awaited uint8

const (
	nothing  awaited = iota
	aFrame           // or anything else that ends a poll
	anAnswer         // to a heartbeat
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

// Wake implements transport.Parking: sessions call it under their locks, so the loop
// takes the poll back later.
func (c *conn) Wake() { c.loop.post(c, (*conn).takeBack) }

// proceed goes on, and leaves the lane if that is the end.
func (c *conn) proceed() {
	if c.fate != left && !c.goOn() {
		c.leave()
	}
}

// goOn does what can be done now: it writes what was kept, goes on with the poll,
// serves requests and reads, in this order, so that nothing that was read ahead is
// looked at before the answer before it is complete. Commands and frames take turns.
// It returns false when the connection's time on the lane is over.
func (c *conn) goOn() bool {
	for step := 0; c.fate <= finishing; step++ {
		switch {
		case c.polling == waiting:
			if c.ended {
				c.gone.left()
			}
			return c.await(aFrame)
		case step == atATime:
			c.resumeLater()
			return c.await(nothing)
		case c.polling != parked && c.failed:
			c.fate = closing
		case c.polling != parked && c.Blocked():
			c.flush()
			if c.Blocked() {
				return c.await(space)
			}
			c.awaited = nothing
			if c.duplex != nil {
				c.duplex.Conversation.Wrote(c.lane.now())
			}
		case c.duplex != nil && c.duplex.finish != nil:
			c.takeBack()
			c.finishCommand()
		case c.duplex != nil && c.duplex.Conversation.HasEnded() && c.filled > 0:
			c.consume(c.filled)
		case c.talks() && c.polling != parked && c.filled > 0 && !c.partial:
			c.carryOut()
		case c.duplex != nil && c.duplex.wroteFrames && c.polling == begun && c.mayRead():
			c.read() // commands have their turn while there is more to send than the client reads
		case c.polling == begun:
			c.became(c.answer.Go(c.filled > 0 || c.lane.draining.Load()))
		case c.polling == noPoll && c.fate == finishing && !c.lingers():
			c.fate = closing
		case c.held != nil && c.ended:
			c.fate = closing
		case c.held != nil && c.lane.draining.Load():
			c.tell()
		case c.held != nil:
			c.maybeRelease()
			return c.await(nothing)
		case c.duplex == nil && c.polling == noPoll && c.filled > 0 && !c.partial:
			c.serve()
		case c.mayRead():
			c.read()
		case c.ended && c.filled == bufferBytes: // and a poll is parked before it all
			c.fate = closing
		default:
			return c.rest()
		}
	}
	return false
}

// mayRead reports whether there is something to read, and a use for it: what comes
// behind commands that wait for their turn can wait with them.
func (c *conn) mayRead() bool {
	return c.unread && c.filled < bufferBytes && (c.duplex == nil || !c.duplex.Conversation.Busy() || c.filled == 0)
}

// atATime is how many steps a connection makes before others have their turn: a
// client may send requests, or take parts of a stream, as fast as they are served.
const atATime = 64

func (c *conn) resumeLater() {
	c.loop.tired = true
	if !c.resuming {
		c.resuming = true
		c.loop.post(c, (*conn).resume)
	}
}

func (c *conn) resume() { c.resuming = false }

// rest is what a connection does that has nothing to do.
func (c *conn) rest() bool {
	c.maybeRelease()
	switch {
	case c.duplex != nil:
		return c.await(aFrame)
	case c.filled > 0 && c.polling == noPoll:
		return !c.lane.draining.Load() && c.await(theRest)
	case c.polling == parked:
		return c.await(aFrame)
	}
	return !c.lane.draining.Load() && c.await(aRequest)
}

// await notes what the connection waits for; see awaited.
func (c *conn) await(what awaited) bool {
	if what == space && !c.space {
		c.space = true
		if c.loop.watch(c.fd, andSpace) != nil {
			return false
		}
	}
	if what != c.awaited || what <= aRequest {
		c.awaited = what
		c.due = c.dueFor(what)
	}
	return true
}

// dueFor is until when something is awaited, in seconds of the lane's age.
func (c *conn) dueFor(what awaited) int64 {
	due := c.lane.age() + c.lane.patience[what].Load()
	if what == aFrame && c.duplex != nil {
		if at := c.duplex.Conversation.Due(); !at.IsZero() {
			due = min(due, int64(at.Sub(c.lane.begun)/time.Second))
		}
	}
	return due
}

// overdue ends what the connection has waited for too long.
func (c *conn) overdue() {
	switch {
	case c.awaited == aFrame && c.duplex != nil && c.polling != waiting:
		c.overdueDuplex()
		fallthrough
	case c.awaited == aFrame:
		// To take back a poll that still waits would put its heartbeat off.
		if c.polling == parked && !c.answer.IsParked() {
			c.takeBack()
		}
	case c.awaited == theRest:
		c.fate = returning
	case c.awaited == space:
		c.lane.metrics.Ended(metrics.SlowReader)
		c.fate = closing
	default:
		c.fate = closing
	}
}

// close closes the connection; a poll that waits in a goroutine is told first.
func (c *conn) close() {
	c.fate = closing
	if c.polling == waiting {
		c.ended = true
		c.gone.left()
	}
}

// leave ends the connection's time on the lane.
func (c *conn) leave() {
	if c.polling == waiting {
		return // its goroutine does
	}
	if c.polling != noPoll && !(c.polling == parked && c.answer.Unpark()) {
		c.answer.Abandon()
	}
	c.polled()
	if c.duplex != nil {
		c.duplex.cancel()
		c.duplex.Conversation.Close()
	}
	c.dropBacklog()
	c.loop.leave(c)
	if c.fate == returning {
		c.goBack()
	} else {
		c.release()
		c.hangUp()
	}
	c.fate = left
	if c.duplex != nil && c.duplex.finish != nil {
		c.finishCommand()
	}
	c.lane.forget()
}

// Left implements session.Client: a poll that is not done keeps the descriptor open.
func (c *conn) Left() bool { return listen.PeerLeft(c.fd) }

// Client implements memory.Owner. The borrower of the output calls it; while it is lent
// no request is read.
func (c *conn) Client() *memory.Client {
	if c.duplex != nil {
		return c.duplex.Conversation.Client()
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
	c.seat.Leave()
}

// read reads once. A poll that is parked is taken back: its client sent something,
// most often the next poll, because it has the answer that was handed over.
func (c *conn) read() {
	if c.buf == nil {
		c.buf = buffers.Get().(*[bufferBytes]byte)
	}
	n, errno := rawRead(c.fd, c.buf[c.filled:])
	switch {
	case errno == syscall.EINTR:
		return
	case errno == syscall.EAGAIN:
		c.unread = false
		return
	case n <= 0:
		c.fate = closing
		return
	}
	c.filled += n
	c.readAt = time.Since(c.lane.begun)
	c.partial = false
	if c.duplex != nil {
		c.duplex.wroteFrames = false
	}
	// The loop hears of what comes after this; of an end that was there, it has told.
	c.unread = c.ended || c.filled == bufferBytes
	c.lane.metrics.BytesIn.Add(float64(n))
	c.takeBack()
}

// consume takes the first n bytes off what was read.
func (c *conn) consume(n int) {
	c.filled = copy(c.buf[:], c.buf[n:c.filled])
	c.awaited = nothing
}

// maybeRelease gives the buffer back, unless there is something in it.
func (c *conn) maybeRelease() {
	if c.filled == 0 {
		c.release()
	}
}

func (c *conn) release() {
	if c.buf != nil {
		buffers.Put(c.buf)
		c.buf, c.filled = nil, 0
	}
}

// goBack gives the connection to net/http with what was read of it.
func (c *conn) goBack() {
	c.strikes++
	if c.served >= worthwhile {
		c.strikes = 0
	}
	back := &prefixed{prefix: bytes.Clone(c.buf[:c.filled]), strikes: c.strikes}
	c.release()
	c.lane.metrics.LaneReturned.Inc()
	c.lane.running.Go(func() { c.lane.back.giveBack(c.fd, c.seat, back) })
}

// A connection whose requests go back again and again is left there: taking it over
// costs more than net/http does for a request.
const (
	worthwhile = 8 // requests on the lane that make up for a way there and back
	maxStrikes = 3
)
