package lane

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// requests is the work of a connection that carries requests of the lane's forms.
type requests struct {
	parser  parser
	refusal error  // that is delayed: its client does not wait as it is told; nil: none
	blanks  int    // bytes of line ends that may come before the next request
	served  uint32 // requests since it came to the lane
	strikes uint8  // how often it was handed back after next to nothing, in a row
}

// serve serves one request, and reports whether it did anything.
func (c *conn) serve() bool {
	w := &c.requests
	switch {
	case c.state != noPoll:
		return false
	case c.ending == lastAnswer, w.refusal != nil && c.ended:
		c.ending = closing
	case w.refusal != nil && c.lane.draining.Load():
		c.answerRefusal()
	case w.refusal != nil || !c.has():
		return false
	default:
		c.serveNext()
	}
	return true
}

// serveNext serves the first of the requests that were read.
func (c *conn) serveNext() {
	var r request
	switch kind := c.requests.parser.read(c.bytes(), &r); kind {
	case pollForm, topicsForm:
		c.servePoll(kind, &r)
	case publishForm:
		c.servePublish(&r)
	case unfinished:
		c.partial = true
		if r.length > bufferBytes {
			c.ending = returning
		}
	default:
		if !c.skipEmptyLine() {
			c.ending = returning
		}
	}
}

// skipEmptyLine skips what some clients send behind the body of a POST, as net/http
// does: line ends among the first four bytes. It reports whether there was one.
func (c *conn) skipEmptyLine() bool {
	first := c.buf[:min(c.requests.blanks, c.filled)]
	n := len(first) - len(bytes.TrimLeft(first, "\r\n"))
	c.requests.blanks -= n
	c.consume(n)
	return n > 0
}

// blanksBehindPost is how many bytes of line ends may follow a POST's body.
const blanksBehindPost = 4

// servePoll begins one poll.
func (c *conn) servePoll(kind form, r *request) {
	var s *session.Session
	var req transport.Request
	var err error
	caller := c.caller(r)
	if kind == topicsForm {
		p := app.TopicPoll{Query: string(r.query), Accepts: r.fields.accepts}
		if s, req, err = c.lane.app.PollTopics(app.NoWait, caller, p); errors.Is(err, app.ErrWouldWait) {
			c.callAside(r, 0, func(ctx context.Context) func(*conn) {
				s, req, err := c.lane.app.PollTopics(ctx, caller, p)
				return func(c *conn) { c.answerPoll(s, req, err) }
			})
			return
		}
	} else {
		s, req, err = c.lane.app.Poll(caller, app.Poll{Session: r.name, Known: c.session, Query: r.query, Accepts: r.fields.accepts})
	}
	c.accept(r, 0)
	c.answerPoll(s, req, err)
}

// answerPoll begins a poll, or refuses it.
func (c *conn) answerPoll(s *session.Session, req transport.Request, err error) {
	if err != nil {
		c.refuse(err)
		return
	}
	c.lane.metrics.LanePolls.Inc()
	req.At = c.lane.begun.Add(c.readAt)
	c.beginPoll(s, req)
}

// caller returns who sent a request.
func (c *conn) caller(r *request) app.Caller {
	c.who = c.counted.Who(header(r.fields.forwardedFor))
	return app.Caller{Credentials: auth.Credentials{Authorization: r.fields.authorization}, Who: c.who}
}

// header returns a header's values, as net/http has them.
func header(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// accept notes that a request is served here, and what may follow it.
func (c *conn) accept(r *request, blanks int) {
	c.requests.served++
	c.requests.blanks = blanks
	c.origin = r.fields.originIndex
	c.consume(r.length)
}

// callAside has a goroutine call what has to wait, and answers with what the call
// returns. Meanwhile the connection does nothing else. ctx ends if the client leaves.
func (c *conn) callAside(r *request, blanks int, call func(ctx context.Context) (answer func(*conn))) {
	c.accept(r, blanks)
	c.state = waiting
	c.makeClient()
	c.lane.running.Go(func() {
		answer := call(c.client)
		c.loop.post(c, func(c *conn) {
			c.state = noPoll
			answer(c)
		})
	})
}

// fail answers with what err says, or closes the connection if nothing can be told. A
// client that is told that the daemon drains reconnects, which may lead to another daemon.
func (c *conn) fail(err error) {
	p := c.lane.app.Problem(err)
	if p == nil {
		c.ending = closing
		return
	}
	body := app.InJSON(p)
	closes := c.lane.draining.Load() || p.Code == wire.CodeDraining
	_ = c.write(c.head().appendProblem(nil, p, append(body, '\n'), closes)) // isFlushed looks whether it failed
	c.answeredBy(closes)
}

// servePublish serves one publish.
func (c *conn) servePublish(r *request) {
	if !r.fields.passes() {
		c.ending = returning
		return
	}
	caller, p := c.caller(r), app.Publish{
		Topic: string(r.name), Query: string(r.query), Payload: r.body,
		ContentType: app.HeaderOf(header(r.fields.contentType)), IdempotencyKey: app.HeaderOf(header(r.fields.idempotencyKey)),
	}
	published, err := c.lane.app.Publish(app.NoWait, caller, p)
	if errors.Is(err, app.ErrWouldWait) {
		p.Payload = bytes.Clone(r.body)
		c.callAside(r, blanksBehindPost, func(ctx context.Context) func(*conn) {
			published, err := c.lane.app.Publish(ctx, caller, p)
			return func(c *conn) { c.answerPublish(published, err) }
		})
		return
	}
	c.accept(r, blanksBehindPost)
	c.answerPublish(published, err)
}

// answerPublish answers a publish, or refuses it.
func (c *conn) answerPublish(published wire.Published, err error) {
	if err != nil {
		c.refuse(err)
		return
	}
	c.lane.metrics.LanePublishes.Inc()
	c.writePublished(published)
}

// writePublished writes the answer to a publish that succeeded.
func (c *conn) writePublished(published wire.Published) {
	s := takeScratch()
	defer s.free()
	var body [512]byte
	line := frame.AppendPublished(body[:0], published)
	s.bytes = append(c.head().published.Append(s.bytes, len(line)), line...)
	_ = c.writeScratch(s) // isFlushed looks whether it failed
	c.answered()
}

// refuse answers with what err says: now, or later if its client does not wait as it is
// told (limit.Refusal). A refusal that is delayed costs no goroutine and no timer: its
// loop looks at each Tick whether it is due.
func (c *conn) refuse(err error) {
	refusal, ok := errors.AsType[*limit.Refusal](err)
	if !ok || refusal.Hold <= 0 || c.lane.draining.Load() {
		c.fail(err)
		return
	}
	c.requests.refusal = err
	c.loop.delay(c, time.Now().Add(refusal.Hold))
}

// answerRefusal answers with the refusal that was delayed.
func (c *conn) answerRefusal() {
	why := c.requests.refusal
	c.requests.refusal = nil
	c.fail(why)
}
