package lane

import (
	"bytes"
	"encoding/json"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// serve serves the first of the requests that were read.
func (c *conn) serve() {
	var r request
	switch kind := c.parser.read(c.buf[:c.filled], &r); kind {
	case poll, pollTopics:
		c.servePoll(kind, &r)
	case publish:
		c.servePublish(&r)
	case unfinished:
		c.partial = true
		if r.length > bufferBytes {
			c.fate = returning
		}
	default:
		if !c.skipEmptyLine() {
			c.fate = returning
		}
	}
}

// skipEmptyLine skips what some clients send behind the body of a POST, as net/http
// does: line ends among the first four bytes. It reports whether there was one.
func (c *conn) skipEmptyLine() bool {
	first := c.buf[:min(c.blanks, c.filled)]
	n := len(first) - len(bytes.TrimLeft(first, "\r\n"))
	c.blanks -= n
	c.consume(n)
	return n > 0
}

// blanksBehindPost is how many bytes of line ends may follow a POST's body.
const blanksBehindPost = 4

// servePoll begins one poll.
func (c *conn) servePoll(kind form, r *request) {
	s, req, err := c.findPoll(kind, r)
	if err == app.ErrWouldWait {
		c.fate = returning
		return
	}
	c.took(r)
	c.blanks = 0
	if err != nil {
		c.refuse(err)
		return
	}
	c.lane.metrics.LanePolls.Inc()
	req.At = c.lane.begun.Add(c.readAt)
	c.beginPoll(s, req)
}

func (c *conn) findPoll(kind form, r *request) (*session.Session, transport.Request, error) {
	if kind == pollTopics {
		return c.lane.app.PollTopics(app.NoWait, c.caller(r), app.TopicPoll{Query: string(r.query), Accepts: r.fields.accepts})
	}
	s, req, err := c.lane.app.Poll(c.caller(r), app.Poll{Session: r.name, Known: c.known, Query: r.query, Accepts: r.fields.accepts})
	c.known = s
	return s, req, err
}

// caller returns who sent a request.
func (c *conn) caller(r *request) app.Caller {
	c.who = c.seat.Who(header(r.fields.forwardedFor), "")
	return app.Caller{Credentials: auth.Credentials{Authorization: r.fields.authorization}, Who: c.who}
}

// header returns a header's values, as net/http has them.
func header(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// took notes that a request is served here.
func (c *conn) took(r *request) {
	c.served++
	c.origin = r.fields.originIndex
	c.consume(r.length)
}

// beginPoll begins a poll of s.
func (c *conn) beginPoll(s *session.Session, req transport.Request) {
	if s.ID() == "" {
		c.stateless = s
	}
	c.format, c.gzip = req.Format, req.Gzip
	req.Client = c
	if err := c.answer.Begin(s, req); err != nil {
		c.polled()
		c.end(err)
		return
	}
	c.polling = begun
}

// fail answers with what err says, or closes the connection if nothing can be told. A
// client that is told that the daemon drains reconnects, which may lead to another daemon.
func (c *conn) fail(err error) {
	p := c.lane.app.Problem(err)
	if p == nil {
		c.fate = closing
		return
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic("BUG: a problem does not marshal: " + err.Error())
	}
	closes := c.lane.draining.Load() || p.Code == wire.CodeDraining
	answer := c.head().appendProblem(nil, p, append(body, '\n'), closes)
	c.wrote(c.write(answer))
	c.maybeFinish(closes)
}

// wrote ends an answer that is no poll's.
func (c *conn) wrote(err error) {
	if err != nil {
		c.fate = closing
	}
	c.answered()
}

// servePublish serves one publish.
func (c *conn) servePublish(r *request) {
	if !r.fields.passes() {
		c.fate = returning
		return
	}
	published, err := c.lane.app.Publish(app.NoWait, c.caller(r), app.Publish{
		Topic: string(r.name), Query: string(r.query), Payload: r.body,
		ContentType: header(r.fields.contentType), IdempotencyKeys: header(r.fields.idempotencyKey),
	})
	if err == app.ErrWouldWait {
		c.fate = returning
		return
	}
	c.took(r)
	c.blanks = blanksBehindPost
	if err != nil {
		c.refuse(err)
		return
	}
	c.lane.metrics.LanePublishes.Inc()
	c.answerPublish(published)
}

func (c *conn) answerPublish(published wire.Published) {
	s := takeScratch()
	defer s.free()
	var body [512]byte
	line := frame.AppendPublished(body[:0], published)
	s.bytes = append(c.head().published.Append(s.bytes, len(line)), line...)
	c.wrote(c.writeScratch(s))
}
