package lane

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
)

// A conn is one connection on the lane. Its loop owns it, and takes steps on each event
// and letter, as many as it can without waiting. A connection with nothing to do holds no
// buffer and no goroutine.
//
// While a poll waits, the loop lends the output with the poll's answer. It lends them to
// the session on which the poll is parked, which hands frames over under its lock
// (session.Outlet). Or it lends them to a goroutine that waits on the session's queue; see
// Config.HandOff.
type conn struct {
	output // where answers go
	poll   // the poll that is answered
	input  // bytes that were read

	loop    *loop             // immutable
	counted *limit.Connection // immutable; left with the descriptor
	who     limit.Who         // the sender of the last request

	// A connection has one of these.
	requests requests
	talk     *conversation // nil: it has requests

	ending     ending
	waitsFor   waitKind
	due        int64 // when the wait ends, in seconds of the lane's age
	hearsSpace bool  // the loop gets events of space for writing
	resuming   bool  // a letter that continues the connection is posted

	spent uint16 // steps of the turn, beyond those that were taken; see spend
}

// Bytes of a connection that waits, and those that the conversation of a two-way connection adds.
const (
	connBytes = 672
	talkBytes = 640
)

// count adds to the memory account of connections.
func (c *conn) count(bytes int64) { c.lane.cfg.Polls.Memory().Add(memory.Queues, bytes) }

// An ending is how a connection leaves the lane.
type ending uint8

const (
	staying    ending = iota
	lastAnswer        // it closes after the answer
	closing
	returning // to net/http, with the bytes that nobody served
	left
)

// A waitKind is what a connection waits for. Each wait has a bound:
//
//	wait         at most       counted from               then
//	waitTurn     Idle          its last turn              close
//	waitFrame    Idle          its last event             look again
//	 or          see Conversation                         what the Conversation says
//	waitRequest  Idle          its last event             close
//	waitRest     restTimeout   the begin of the request   hand back
//	waitSpace    WriteTimeout  the write                  close
type waitKind uint8

const (
	waitTurn    waitKind = iota
	waitFrame            // a frame, or the end of the poll
	waitRequest          // the next request
	waitRest             // the rest of a request
	waitSpace            // the client reads the rest of an answer
)

// Wake implements transport.Parking. Sessions call it under their locks.
func (c *conn) Wake() { c.loop.post(c, (*conn).takeBack) }

// Left implements session.Client. The descriptor stays open until the poll is done.
func (c *conn) Left() bool { return listen.PeerLeft(c.fd) }

// turn is how many steps a connection takes before other connections get their turn. A
// client may send requests, or read a stream, as fast as the loop serves them.
const turn = 64

// proceed takes the steps of a turn. Then the connection leaves, or waits for something.
func (c *conn) proceed() {
	c.spent = 0
	more := true
	for steps := 0; more && steps+int(c.spent) < turn; steps++ {
		more = c.step()
	}
	if c.filled == 0 {
		c.release()
	}
	what := waitRequest
	switch {
	case more:
		what, c.loop.tired = waitTurn, true
		if !c.resuming {
			c.resuming = true
			c.loop.post(c, func(c *conn) { c.resuming = false })
		}
	case c.state == waiting: // it cannot leave before the goroutine ends
		if what = waitFrame; c.ended {
			c.noteLeft()
		}
	case c.ending > lastAnswer, c.ended && c.filled == bufferBytes:
		c.leave()
		return
	case c.state == parked:
		what = waitFrame
	case c.Blocked():
		if !c.hearsSpace && c.loop.watch(c.fd, andSpace) != nil {
			c.leave()
			return
		}
		what, c.hearsSpace = waitSpace, true
	case c.talk != nil:
		what = waitFrame
	case c.requests.refusal != nil:
		what = waitTurn
	case c.lane.draining.Load():
		c.leave()
		return
	case c.filled > 0:
		what = waitRest
	}
	c.await(what)
}

// spend counts bytes that name topics as more steps, since a topic costs about as much as a step.
// So a turn takes about 2 ms at most.
func (c *conn) spend(bytes int) { c.spent += uint16(min(bytes/bytesOfStep, turn)) }

const bytesOfStep = 32

// step takes one step: it writes the backlog, serves a request or command, continues the
// poll, or reads. It returns false if none is possible now. It serves a request only when
// the last answer is written.
func (c *conn) step() bool {
	if c.ending > lastAnswer {
		return false
	}
	if c.state == parked && c.read() {
		c.takeBack()
	}
	if c.state >= parked {
		return false
	}
	if c.Blocked() {
		c.flush()
		if c.Blocked() {
			return false
		}
		c.waitsFor = waitTurn
	}
	switch {
	case c.failed:
		c.ending = closing
		return false
	case c.talk != nil && c.converse(), c.talk == nil && c.serve():
		return true
	case c.state == begun:
		c.continuePoll()
		return true
	}
	return c.read()
}

// read reads once, and reports whether the client has sent bytes: mostly the next poll,
// because it has received the answer that a session handed over. It does not read behind a
// delayed refusal, and at most one buffer behind a command that waits.
func (c *conn) read() bool {
	switch {
	case !c.unread || c.filled == bufferBytes:
		return false
	case c.talk != nil && c.filled > 0 && c.talk.Busy():
		return false
	case c.requests.refusal != nil:
		return false
	}
	if c.buf == nil {
		c.buf = buffers.Get().(*[bufferBytes]byte)
	}
	n, errno := 0, syscall.EINTR
	for errno == syscall.EINTR {
		n, errno = rawRead(c.fd, c.buf[c.filled:])
	}
	switch {
	case errno == syscall.EAGAIN:
		c.unread = false
		return false
	case n <= 0: // the client has left
		c.ending = closing
		return false
	}
	c.filled += n
	c.partial = false
	// Bytes that arrive later make another event. The end may have made its event already.
	c.unread = c.ended || c.filled == bufferBytes
	c.readAt = time.Since(c.lane.begun)
	c.lane.cfg.Metrics.BytesIn.Add(float64(n))
	if c.talk != nil {
		c.talk.wroteFrames = false
	}
	return true
}

// consume removes the first n bytes that were read.
func (c *conn) consume(n int) {
	c.filled = copy(c.buf[:], c.buf[n:c.filled])
	c.waitsFor = waitTurn
}

// answered notes that an answer is complete. It is the last on the connection if the lane
// drains.
func (c *conn) answered(last bool) {
	c.entry.End()
	c.entry = nil
	if c.session == nil {
		c.answer.Forget()
	}
	if c.ending == staying && (last || c.lane.draining.Load()) {
		c.ending = lastAnswer
	}
}

// await notes what the connection waits for. The rest of something has one bound: more
// bytes of it do not extend the wait.
func (c *conn) await(what waitKind) {
	if what == c.waitsFor && what > waitRequest {
		return
	}
	c.waitsFor = what
	most := Idle
	switch what {
	case waitRest:
		most = restTimeout
	case waitSpace:
		most = c.lane.cfg.Polls.Config().WriteTimeout
	}
	c.due = c.lane.age.Load() + max(1, int64(most/time.Second))
	if what == waitFrame && c.talk != nil {
		if at := c.talk.Due(); !at.IsZero() {
			c.due = min(c.due, int64(at.Sub(c.lane.begun)/time.Second))
		}
	}
}

// overdue ends a wait that took too long.
func (c *conn) overdue() {
	switch c.waitsFor {
	case waitFrame:
		if c.talk != nil && c.state != waiting {
			if a := c.talk.Overdue(c.lane.now()); a.Close || len(a.Write) > 0 {
				c.takeBack()
				c.act(a)
			}
		}
		// A poll that is still parked stays so: taking it back would delay its heartbeat.
		if c.state == parked && !c.answer.IsParked() {
			c.takeBack()
		}
	case waitRest:
		c.ending = returning
	case waitSpace:
		c.lane.cfg.Metrics.Ended(metrics.SlowReader)
		c.ending = closing
	default:
		c.ending = closing
	}
}

// close closes the connection, as soon as no goroutine has its output.
func (c *conn) close() {
	c.ending = closing
	if c.state == waiting {
		c.noteLeft()
	}
}

// A waiter is what a connection needs once something waits beside the loop: a goroutine for its
// poll or its call, or its publish. Most polls park.
type waiter struct {
	client clientContext      // ends goroutines that wait
	giveUp context.CancelFunc // ends the publish that waits, if any
	run    func()             // conn.wait; bound once, so that a poll allocates nothing
	became session.State      // what wait returned
	err    error              // likewise
}

// makeWaiter makes the fields for what waits beside the loop.
func (c *conn) makeWaiter() *waiter {
	if c.waits == nil {
		c.waits = &waiter{client: make(clientContext), giveUp: func() {}, run: c.wait}
	}
	return c.waits
}

// noteLeft lets what the connection waits for know that its client has left.
func (c *conn) noteLeft() {
	if c.waits != nil {
		c.waits.client.leave()
		c.waits.giveUp()
	}
	if c.talk != nil {
		c.talk.giveUp()
	}
}

// leave removes the connection from the lane.
func (c *conn) leave() {
	c.abandonPoll()
	c.entry.End()
	c.entry = nil
	if c.talk != nil {
		c.talk.end()
	}
	c.dropBacklog()
	c.loop.leave(c)
	if c.ending == returning {
		c.handBack()
	} else {
		c.release()
		closeFD(c.fd)
		c.counted.Leave()
	}
	c.ending = left
	c.lane.cfg.Metrics.LaneConnections.Dec()
	c.count(-connBytes)
	if c.talk != nil {
		c.count(-talkBytes)
	}
	c.lane.running.Done()
}

// A clientContext is a context.Context that is done when the client has left. A
// context.WithCancel for each connection would need three times the memory.
type clientContext chan struct{}

// leave ends the context. Only the loop calls it.
func (c clientContext) leave() {
	if c.Err() == nil {
		close(c)
	}
}

func (c clientContext) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c clientContext) Done() <-chan struct{}       { return c }
func (c clientContext) Value(any) any               { return nil }

// Err implements context.Context.
func (c clientContext) Err() error {
	select {
	case <-c:
		return context.Canceled
	default:
		return nil
	}
}

// Client implements memory.Owner. The borrower of the output may call it, because no
// request is read while the output is lent.
func (c *conn) Client() *memory.Client {
	return c.who.Client()
}

// CutOff implements memory.Owner.
func (c *conn) CutOff() {
	c.loop.post(c, func(c *conn) {
		c.lane.cfg.Metrics.Ended(metrics.SlowReader)
		c.close()
	})
}

// An input is the reading side of a connection. It holds a buffer only while it has bytes
// that nobody has served.
type input struct {
	buf    *[bufferBytes]byte // nil: empty
	filled int                // how many bytes of buf are filled: those that nobody has served
	readAt time.Duration      // when the last of them were read, after lane.begun

	unread  bool // the socket may have more bytes
	ended   bool // the client has closed its side
	partial bool // buf has no whole request, or no whole piece of a conversation
}

// bufferBytes is the longest request that the lane reads.
const bufferBytes = 8 << 10

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// prefill takes over bytes that were read before the connection joined.
func (in *input) prefill(b []byte) {
	if len(b) > 0 {
		in.buf = buffers.Get().(*[bufferBytes]byte)
		in.filled = copy(in.buf[:], b)
	}
}

func (in *input) release() {
	if in.buf != nil {
		buffers.Put(in.buf)
		in.buf, in.filled = nil, 0
	}
}
