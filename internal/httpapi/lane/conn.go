package lane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// bufferBytes is the longest request that the lane reads.
const bufferBytes = 8 << 10

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// A conn is one connection on the lane, and the goroutine that serves it.
//
// The goroutine spends its life in raw.Read, in ready: Go's poller wakes it when
// there is something to read, it serves what came and waits again. It does not
// leave raw.Read in between, because a new one costs a read that finds nothing.
// While it waits it holds no buffer. A poll that has nothing to say is parked on
// the connection (output belongs to others then), and the goroutine
// waits on as it would for the next request. Wake ends the wait, by a read
// deadline that has passed.
type conn struct {
	output // of the goroutine, or of whoever holds the lock of the session whose poll is parked here

	// Owned by the goroutine.
	poller    transport.Poller
	polling   bool             // a poll was parked here; only Unpark tells what became of it
	stateless *session.Session // of the poll, if it has none of its own; ended with it
	parser    parser
	known     *session.Session   // of the last poll: most connections have one
	buf       *[bufferBytes]byte // nil while there is nothing to serve
	filled    int                // bytes of buf that are read and not served
	blanks    int                // bytes of line ends that may come before the next request
	restBy    time.Time          // when the rest of an unfinished request must be there
	fate      fate

	woken  atomic.Bool  // a read deadline was set to wake the goroutine
	unsure atomic.Bool  // whether the client has ended its side: it was not asked
	active atomic.Int64 // unix seconds: when the client was last heard of

	gone    *gone // made when the leavers were joined; nil before
	watched int32 // number among the leavers

	prev, next *conn // in the lane's list; guarded by lane.mu
}

// A fate is how a connection's time on the lane ends.
type fate uint8

const (
	staying fate = iota
	closing
	returning // to net/http, with what is in buf
)

// run serves what took the connection over and then waits for more, in a goroutine
// of its own: this one's stack has grown, and a stack that has grown stays so.
func (c *conn) run(first func() bool) {
	if first() && c.serve() {
		go c.wait()
		return
	}
	c.leave()
}

// leave ends the connection's time on the lane.
func (c *conn) leave() {
	defer c.lane.running.Done()
	c.lane.forget(c)
	if c.fate != returning || !c.goBack() {
		c.release()
		_ = c.nc.Close()
	}
}

// wait waits for requests and serves them, until the connection's fate is sealed.
func (c *conn) wait() {
	defer c.leave()
	for {
		err := c.raw.Read(c.ready)
		switch {
		case err == nil: // ready said so
		case errors.Is(err, os.ErrDeadlineExceeded) && c.resume():
			continue
		case c.fate == staying:
			c.fate = closing
		}
		if c.polling && !c.poller.Unpark() {
			c.poller.Gone()
		}
		c.polled()
		return
	}
}

// ready reads what is there and serves it, until there is nothing left: Go's poller
// tells of each arrival once, and an end that came together with a request would
// go unnoticed. Behind a poll that was parked it does without the read that finds
// nothing, a fifteenth of what a delivery costs; Tick has that made up for, should
// the poll stay parked. It returns true to leave raw.Read.
func (c *conn) ready(fd uintptr) bool {
	for {
		if c.buf == nil {
			c.buf = buffers.Get().(*[bufferBytes]byte)
		}
		space := bufferBytes - c.filled
		n, errno := rawRead(fd, c.buf[c.filled:])
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			c.unsure.Store(false)
			if c.filled == 0 {
				c.release()
			}
			return false
		case n <= 0:
			c.fate = closing
			return true
		}
		c.filled += n
		c.lane.metrics.BytesIn.Add(float64(n))
		c.active.Store(c.lane.heads.Load().second)
		if !c.heard() {
			return true
		}
		c.unwake() // nothing is parked now: only the lane itself can have called
		if !c.serve() {
			return true
		}
		// Fast path: the usual request, alone.
		if c.polling && n < space {
			c.unsure.Store(true)
			return false
		}
	}
}

// heard settles the poll that was parked, because its client sent something. Most
// often its answer was handed over and this is the next request.
func (c *conn) heard() bool {
	if c.polling {
		over := c.poller.Unpark()
		c.polling = false
		if c.Flush() != nil {
			c.fate = closing
			if !over {
				c.poller.Gone()
			}
			return false
		}
		if over {
			c.polled()
			return true
		}
		return c.goOn(true)
	}
	return true
}

// serve serves the requests that have been read. It returns true when there is
// nothing more to do than to wait.
func (c *conn) serve() bool {
	for c.filled > 0 {
		var r request
		switch kind := c.parser.read(c.buf[:c.filled], &r); kind {
		case poll, pollTopics:
			if !c.servePoll(kind, &r) {
				return false
			}
		case publish:
			if !c.servePublish(&r) {
				return false
			}
		case unfinished:
			if r.length <= bufferBytes {
				return c.awaitRest()
			}
			c.fate = returning
			return false
		default:
			if !c.skipEmptyLine() {
				c.fate = returning
				return false
			}
		}
	}
	c.release()
	return c.polling || c.stay()
}

// restTimeout is how long the rest of a request may take before net/http gets what
// is there.
const restTimeout = 10 * time.Second

func (c *conn) awaitRest() bool {
	if c.restBy.IsZero() {
		c.restBy = time.Now().Add(restTimeout)
	}
	if c.lane.draining.Load() || c.nc.SetReadDeadline(c.restBy) != nil {
		c.fate = closing
	}
	return c.fate == staying
}

// skipEmptyLine skips what some clients send behind the body of a POST, as net/http
// does: line ends among the first four bytes. It reports whether there was one.
func (c *conn) skipEmptyLine() bool {
	first := c.buf[:min(c.blanks, c.filled)]
	n := len(first) - len(bytes.TrimLeft(first, "\r\n"))
	if n == 0 {
		return false
	}
	c.blanks -= n
	c.consume(n)
	return true
}

// blanksBehindPost is how many bytes of line ends may follow a POST's body.
const blanksBehindPost = 4

// consume takes the first n bytes off what was read.
func (c *conn) consume(n int) {
	c.filled = copy(c.buf[:], c.buf[n:c.filled])
	if c.filled == 0 {
		c.release()
	}
	if !c.restBy.IsZero() {
		c.restBy = time.Time{}
		_ = c.nc.SetReadDeadline(time.Time{}) // a closed connection says so elsewhere
	}
}

func (c *conn) release() {
	if c.buf != nil {
		buffers.Put(c.buf)
		c.buf, c.filled = nil, 0
	}
}

// servePoll serves one poll. It returns false if the connection leaves the lane.
func (c *conn) servePoll(kind form, r *request) bool {
	s, req, err := c.findPoll(kind, r)
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		c.blanks = 0
		c.lane.metrics.LanePolls.Inc()
		c.consume(r.length)
		return c.problem(p)
	}
	if err != nil {
		c.fate = returning
		return false
	}
	c.blanks = 0
	c.lane.metrics.LanePolls.Inc()
	c.consume(r.length)
	return c.beginPoll(s, req)
}

// errForeign sends a request to net/http.
var errForeign = errors.New("not for the lane")

func (c *conn) findPoll(kind form, r *request) (*session.Session, transport.Request, error) {
	credentials := auth.Credentials{Authorization: r.fields.authorization}
	if kind == pollTopics {
		return c.lane.api.PollTopics(r.query, r.fields.accepts, credentials)
	}
	s, req, err := c.lane.api.Poll(r.name, c.known, r.query, r.fields.accepts, credentials)
	if err == nil && !transport.Serves(req.Mode) {
		err = errForeign
	}
	c.known = s
	return s, req, err
}

// beginPoll begins a poll of s and goes on with it.
func (c *conn) beginPoll(s *session.Session, req transport.Request) bool {
	if s.ID() == "" {
		c.stateless = s
	}
	err := c.poller.Poll(s, req)
	if err != nil {
		c.polled()
	}
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		return c.problem(p)
	}
	return c.goOn(c.filled > 0)
}

// goOn goes on with a poll that has begun. While ahead, requests wait behind it.
func (c *conn) goOn(ahead bool) bool {
	parked, err := c.poller.Go(c.life(ahead), ahead)
	if parked {
		c.polling = true
		return true
	}
	c.polled()
	if err == nil {
		return c.stay()
	}
	if c.chunked {
		if c.poller.EndStream(err) != nil || c.endChunks() != nil {
			c.fate = closing
			return false
		}
		return c.stay()
	}
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		return c.problem(p)
	}
	c.fate = closing
	return false
}

// polled ends what a poll without a session had for one.
func (c *conn) polled() {
	if c.stateless != nil {
		c.lane.api.End(c.stateless)
		c.stateless = nil
	}
}

// life is done when the client has left, if the goroutine is about to wait where
// it cannot see that itself.
func (c *conn) life(ahead bool) context.Context {
	if c.lane.handOff && !ahead {
		return context.Background()
	}
	if c.gone == nil {
		c.gone = &gone{done: make(chan struct{})}
		if c.lane.leavers.join(c) != nil {
			c.gone.left()
		}
	}
	return c.gone
}

// stay reports whether the connection may go on after an answer.
func (c *conn) stay() bool {
	c.active.Store(c.lane.heads.Load().second) // silence begins with the answer
	if c.lane.draining.Load() {
		c.fate = closing
	}
	return c.fate == staying
}

// problem answers with p.
func (c *conn) problem(p *wire.Problem) bool {
	c.lane.metrics.Refused.WithLabelValues(string(p.Code)).Inc()
	p = p.Spread()
	body, err := json.Marshal(p)
	if err != nil {
		panic("BUG: a problem does not marshal: " + err.Error())
	}
	answer := c.lane.heads.Load().appendProblem(nil, p, append(body, '\n'), c.lane.draining.Load())
	if c.write(answer) != nil || c.Flush() != nil {
		c.fate = closing
		return false
	}
	return c.stay()
}

// servePublish serves one publish. It returns false if the connection leaves the
// lane.
func (c *conn) servePublish(r *request) bool {
	if !r.fields.sameOrigin() {
		c.fate = returning
		return false
	}
	published, err := c.lane.api.Publish(Publish{
		Topic: r.name, Query: r.query, ContentType: r.fields.contentType, Body: r.body,
		Credentials: auth.Credentials{Authorization: r.fields.authorization},
	})
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		c.consume(r.length)
		c.blanks = blanksBehindPost
		return c.problem(p)
	}
	if err != nil {
		c.fate = returning
		return false
	}
	c.lane.metrics.LanePublishes.Inc()
	c.consume(r.length)
	c.blanks = blanksBehindPost
	return c.answerPublish(published)
}

func (c *conn) answerPublish(published wire.Published) bool {
	s := takeScratch()
	var body [512]byte
	line := wire.AppendPublished(body[:0], published)
	s.bytes = append(c.lane.heads.Load().published.Append(s.bytes, len(line)), line...)
	if c.writeScratch(s) != nil || c.Flush() != nil {
		c.fate = closing
		return false
	}
	return c.stay()
}

// resume looks after what the goroutine was woken for: its poll, a body that has
// not come, the lane's draining, or the connection's idleness.
func (c *conn) resume() bool {
	c.woken.Store(false)
	_ = c.nc.SetReadDeadline(time.Time{}) // before looking: a Wake from now on brings the goroutine back
	if c.polling {
		over := c.poller.Unpark()
		c.polling = false
		if c.Flush() != nil {
			if !over {
				c.poller.Gone()
			}
			return false
		}
		if over {
			c.polled()
			return c.stay()
		}
		c.active.Store(c.lane.heads.Load().second) // a poll that waits is not silence
		return c.goOn(false)
	}
	switch {
	case !c.restBy.IsZero() && time.Now().Before(c.restBy):
		return c.awaitRest()
	case !c.restBy.IsZero():
		c.fate = returning
		return false
	}
	silent := c.silent(time.Now(), c.lane.idle)
	return c.stay() && !silent
}

// silent reports whether the client has not been heard of for so long.
func (c *conn) silent(now time.Time, d time.Duration) bool {
	return now.Unix()-c.active.Load() > int64(d/time.Second)
}

// Wake implements transport.Connection.
func (c *conn) Wake() {
	c.woken.Store(true)
	_ = c.nc.SetReadDeadline(longAgo) // a closed connection is awake already
}

var longAgo = time.Unix(1, 0)

// unwake takes back what Wake did, because the goroutine is about to look anyway.
func (c *conn) unwake() {
	if c.woken.Swap(false) {
		_ = c.nc.SetReadDeadline(time.Time{})
	}
}

// goBack gives the connection to net/http with what was read of it.
func (c *conn) goBack() bool {
	c.lane.metrics.LaneReturned.Inc()
	prefix := bytes.Clone(c.buf[:c.filled])
	c.release()
	if c.nc.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	return c.lane.back.give(&prefixed{Conn: c.nc, prefix: prefix})
}
