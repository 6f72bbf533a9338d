package lane

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// bufferBytes is the longest request that the lane reads.
const bufferBytes = 8 << 10

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// A conn is one connection on the lane. It has no goroutine: whoever knows that
// something happened to it, most often its reader, takes its lock and does all
// that can be done without waiting (goOn). While there is nothing to do it holds
// no buffer.
//
// A poll that has nothing to say is parked on the connection, and its answer is
// handed over by others (session.Direct), or it gets a goroutine that parks on the
// session's queue (wait); see Config.HandOff.
type conn struct {
	output // of whom output tells

	reader *reader // immutable
	number int32   // given by reader when it joined

	mu sync.Mutex // guards the fields below; before a session's lock

	fate    fate
	gone    *gone              // done when the client has ended its side; made when a goroutine waits
	ended   bool               // it has
	unread  bool               // there is something to read, or was
	buf     *[bufferBytes]byte // nil while there is nothing to serve
	filled  int                // bytes of buf that are read and not served
	partial bool               // they are no whole request
	blanks  int                // bytes of line ends that may come before the next request
	parser  parser

	poller    transport.Poller
	polling   polling
	waitFunc  func()           // wait; bound once: a goroutine a poll should not allocate
	known     *session.Session // of the last poll: most connections have one
	stateless *session.Session // of the poll, if it has none of its own; ended with it

	awaited awaited
	space   bool         // the reader tells of space for writing
	due     atomic.Int64 // unix seconds until which awaited may take; 0: for ever

	prev, next *conn // in the lane's list; guarded by lane.mu
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

// polling is where the connection's poll is.
type polling uint8

const (
	noPoll  polling = iota
	begun           // it can go on
	parked          // on the connection; only Unpark tells what became of it
	waiting         // in a goroutine, to which the output and the poller belong
)

// awaited is what a connection waits for, with a bound on how long.
type awaited uint8

const (
	aFrame awaited = iota // or anything else that ends a poll
	aRequest
	theRest // of a request
	space   // for the rest of an answer
)

// happened is told what the reader heard: whether something arrived, and whether
// the client has ended its side. It may have been space for writing.
func (c *conn) happened(arrived, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unread = c.unread || arrived || ended
	c.ended = c.ended || ended
	c.proceed()
}

// Wake implements transport.Connection: what waits in the output, or behind a poll,
// is somebody's to do who does not hold a session's lock.
func (c *conn) Wake() { c.attend((*conn).takeBack) }

// attend does f to the connection in a goroutine and goes on. Its caller knows that
// the connection is in the lane's list.
func (c *conn) attend(f func(*conn)) {
	c.lane.running.Go(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.fate != left {
			f(c)
			c.proceed()
		}
	})
}

// proceed goes on, and leaves the lane if that is the end.
func (c *conn) proceed() {
	if c.fate != left && !c.goOn() {
		c.leave()
	}
}

// goOn does what can be done now: it writes what was kept, goes on with the poll,
// serves requests and reads, in this order, so that nothing that was read ahead is
// looked at before the answer before it is complete. It returns false when the
// connection's time on the lane is over.
func (c *conn) goOn() bool {
	for c.fate <= finishing {
		switch {
		case c.polling == waiting:
			if c.ended {
				c.gone.left()
			}
			return c.await(aFrame)
		case c.polling != parked && c.Kept():
			if c.flush() != nil {
				c.fate = closing
			} else if c.Kept() {
				return c.await(space)
			}
		case c.polling == begun:
			c.became(c.poller.Go(c.filled > 0))
		case c.polling == noPoll && c.fate == finishing:
			c.fate = closing
		case c.polling == noPoll && c.filled > 0 && !c.partial:
			c.serve()
		case c.unread && c.filled < bufferBytes:
			c.read()
		default:
			return c.rest()
		}
	}
	return false
}

// rest is what a connection does that has nothing to do.
func (c *conn) rest() bool {
	switch {
	case c.filled == 0:
		c.release()
	case c.polling == noPoll:
		return !c.lane.draining.Load() && c.await(theRest)
	}
	if c.polling == parked {
		return c.await(aFrame)
	}
	return !c.lane.draining.Load() && c.await(aRequest)
}

// await notes what the connection waits for. How long it may is counted from when
// it began to wait, but for requests from when the client was last heard of.
func (c *conn) await(what awaited) bool {
	if what == space && !c.space {
		c.space = true
		if c.reader.awaitSpace(c) != nil {
			return false
		}
	}
	if patience := c.lane.patience[what]; what != c.awaited || what == aRequest {
		c.awaited = what
		if patience == 0 {
			c.due.Store(0)
		} else {
			c.due.Store(c.lane.heads.Load().second + patience)
		}
	}
	return true
}

// overdue is told that the connection has waited for too long.
func (c *conn) overdue() {
	due := c.due.Load()
	switch {
	case due == 0 || due >= c.lane.heads.Load().second: // something has come meanwhile
	case c.awaited == theRest:
		c.fate = returning
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
	if c.polling != noPoll && !(c.polling == parked && c.poller.Unpark()) {
		c.poller.Gone()
	}
	c.polled()
	c.reader.leave(c)
	if c.fate == returning {
		c.goBack()
	} else {
		c.release()
		closeFD(c.fd)
	}
	c.fate = left
	c.lane.forget(c)
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
	c.partial = false
	// The reader tells of what comes after this; of an end that was there, it has told.
	c.unread = c.ended || c.filled == bufferBytes
	c.lane.metrics.BytesIn.Add(float64(n))
	c.takeBack()
}

// takeBack takes the poll back that is parked, if one is.
func (c *conn) takeBack() {
	if c.polling != parked {
		return
	}
	c.polling = begun
	if c.poller.Unpark() {
		c.polled()
		c.answered()
	}
}

// polled ends a poll's time on the connection, with what a poll without a session
// had for one.
func (c *conn) polled() {
	c.polling = noPoll
	if c.stateless != nil {
		c.lane.api.End(c.stateless)
		c.stateless = nil
	}
}

// answered ends the connection's time after an answer, if the lane drains.
func (c *conn) answered() {
	if c.lane.draining.Load() && c.fate == staying {
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
	case transport.Stuck:
		c.polling = begun
	case transport.Over:
		c.polled()
		c.over(err)
	}
}

// wait is the goroutine of a poll that parks on its session's queue.
func (c *conn) wait() {
	defer c.lane.running.Done()
	state, err := c.poller.Wait(c.gone)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.polling = begun
	c.became(state, err)
	c.proceed()
}

// over answers a poll that has ended with err, if anything is left to say.
func (c *conn) over(err error) {
	problem, ok := errors.AsType[*wire.Problem](err)
	switch {
	case err == nil:
		c.answered()
	case c.chunked:
		if c.poller.EndStream(err) != nil || c.endChunks() != nil {
			c.fate = closing
			return
		}
		c.answered()
	case ok:
		c.problem(problem)
	default:
		c.fate = closing
	}
}

// consume takes the first n bytes off what was read.
func (c *conn) consume(n int) {
	c.filled = copy(c.buf[:], c.buf[n:c.filled])
}

func (c *conn) release() {
	if c.buf != nil {
		buffers.Put(c.buf)
		c.buf, c.filled = nil, 0
	}
}

// goBack gives the connection to net/http with what was read of it.
func (c *conn) goBack() {
	prefix := bytes.Clone(c.buf[:c.filled])
	c.release()
	c.lane.metrics.LaneReturned.Inc()
	c.lane.running.Go(func() { c.lane.back.giveBack(c.fd, prefix) })
}

// restTimeout is how long the rest of a request may take before net/http gets what
// is there.
const restTimeout = 10 * time.Second
