package lane

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// requests is the work of a connection with HTTP requests.
type requests struct {
	parser  parser
	refusal error  // a delayed refusal; nil: none
	blanks  int    // how many bytes of line ends may still precede the next request
	served  uint32 // requests since the connection joined
	strikes uint8  // how often in a row the lane handed it back after few requests
}

// serve serves the first request in the buffer, and reports whether it did anything.
func (c *conn) serve() bool {
	w := &c.requests
	switch {
	case c.state != noPoll:
		return false
	case c.ending == lastAnswer, w.refusal != nil && c.ended:
		c.ending = closing
		return true
	case w.refusal != nil && c.lane.draining.Load():
		c.answerRefusal()
		return true
	case w.refusal != nil || c.filled == 0 || c.partial:
		return false
	}
	var r parsed
	switch kind := w.parser.read(c.buf[:c.filled], &r); {
	case kind == unfinished:
		c.partial = true
		if r.length > bufferBytes {
			c.ending = returning
		}
	case kind == topicsForm && !r.fields.isAllowed, kind == publishForm && !r.fields.isAllowed:
		c.ending = returning // net/http refuses to make a session, or a topic, for a page of another origin
	case kind != foreign:
		c.who = c.counted.Who(r.fields.forwardedFor[:])
		caller := app.Caller{Credentials: auth.Credentials{Authorization: r.fields.authorization}, Who: c.who}
		if kind == publishForm {
			c.servePublish(&r, caller)
		} else {
			c.servePoll(&r, caller)
		}
	default:
		first := c.buf[:min(w.blanks, c.filled)]
		n := len(first) - len(bytes.TrimLeft(first, "\r\n"))
		w.blanks -= n
		c.consume(n)
		if n == 0 {
			c.serveForeign()
		}
	}
	return true
}

// blanksBefore is how many bytes of line ends may precede a request: some clients send them after
// the last (RFC 9112, section 2.2). net/http skips as many, but only after a POST.
const blanksBefore = 4

// serveForeign hands a request back that has none of the lane's forms. If its head is whole and
// net/http would refuse it without a problem, the lane refuses it instead. net/http's own parser
// decides that, so that nothing is parsed in two ways.
func (c *conn) serveForeign() {
	read := c.buf[:c.filled]
	isWhole := bytes.Contains(read, []byte("\n\r\n")) || bytes.Contains(read, []byte("\n\n"))
	if !isWhole || bytes.Contains(bytes.ToLower(read), []byte("transfer-encoding")) { // net/http may answer with 501 instead
		c.ending = returning
		return
	}
	_, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(read)))
	if err == nil {
		c.ending = returning
		return
	}
	c.origin, c.requestID = 0, ""
	c.ending = lastAnswer // nobody knows where the next request begins
	c.fail(problem.New(wire.CodeInvalidRequest, "use an HTTP client, or write the request as in RFC 9112", "the request is not valid HTTP: %s", withoutBytes(err)))
}

// withoutBytes returns what net/http's parser says, without what it quotes: that may be a secret.
func withoutBytes(err error) string {
	if of, ok := errors.AsType[*url.Error](err); ok {
		err = of.Err
	}
	text := err.Error()
	return strings.TrimRight(text[:strings.IndexAny(text+";", `";`)], ": ")
}

// servePoll begins one poll. A poll without a session makes one.
func (c *conn) servePoll(r *parsed, caller app.Caller) {
	a := c.lane.cfg.App
	if r.form == topicsForm {
		c.spend(len(r.query))
		p := request.TopicPollOf(string(r.query), r.fields.accepts, &caller.Credentials)
		if a.OpeningWaits(&caller, p.Open.Topics) {
			caller, p := caller, p // only here are they on the heap
			c.pollAside(r, func(ctx context.Context) (*session.Session, transport.Request, error) {
				return pollTopics(ctx, a, caller, p)
			})
			return
		}
		s, req, err := pollTopics(c.lane.life, a, caller, p)
		c.accept(r)
		c.answerPoll(s, req, err)
		return
	}
	p := request.PollOf(r.query, r.fields.accepts, &caller.Credentials)
	if !a.Recognise(&caller) {
		id, known := bytes.Clone(r.name), c.session
		caller, p := caller, p // likewise
		c.pollAside(r, func(ctx context.Context) (*session.Session, transport.Request, error) {
			return a.Poll(ctx, caller, id, known, p)
		})
		return
	}
	s, req, err := a.Poll(c.lane.life, caller, r.name, c.session, p)
	c.accept(r)
	c.answerPoll(s, req, err)
}

// pollTopics opens a session for one poll.
func pollTopics(ctx context.Context, a *app.App, caller app.Caller, p request.TopicPoll) (s *session.Session, req transport.Request, err error) {
	o, err := a.BeginOpen(ctx, caller, limit.Polls, app.OfQuery)
	if err != nil {
		return nil, req, err
	}
	return o.Poll(p)
}

// pollAside begins a poll that has to wait before that.
func (c *conn) pollAside(r *parsed, poll func(ctx context.Context) (*session.Session, transport.Request, error)) {
	c.callAside(r, func(ctx context.Context) func(*conn) {
		s, req, err := poll(ctx)
		return func(c *conn) { c.answerPoll(s, req, err) }
	})
}

// answerPoll begins a poll, or refuses it.
func (c *conn) answerPoll(s *session.Session, req transport.Request, err error) {
	if err != nil {
		c.refuse(err)
		return
	}
	c.lane.cfg.Metrics.LanePolls.Inc()
	req.At = c.lane.begun.Add(c.readAt)
	c.beginPoll(s, req)
}

// servePublish serves one publish.
func (c *conn) servePublish(r *parsed, caller app.Caller) {
	a, body := c.lane.cfg.App, bytes.Clone(r.body)
	h := request.Head{
		Topic: string(r.name), Query: string(r.query),
		ContentType:    request.Header{Value: r.fields.contentType, Count: min(len(r.fields.contentType), 1)},
		IdempotencyKey: request.Header{Value: r.fields.idempotencyKey, Count: min(len(r.fields.idempotencyKey), 1)},
	}
	if !a.Recognise(&caller) {
		caller := caller // only here is it on the heap
		c.callAside(r, func(ctx context.Context) func(*conn) {
			var published wire.Published
			p, m, err := beginPublish(ctx, a, caller, h, body)
			if err == nil {
				published, err = p.Await(m)
			}
			return func(c *conn) { c.answerPublish(published, err) }
		})
		return
	}
	ctx := c.lane.life
	if r.fields.traceparent != "" {
		ctx = observe.Continue(ctx, r.fields.traceparent, r.fields.tracestate)
	}
	c.accept(r)
	published, over := wire.Published{}, true
	p, m, err := beginPublish(ctx, a, caller, h, body)
	if err == nil {
		published, over, err = p.Send(m)
	}
	if over {
		c.answerPublish(published, err)
		return
	}
	c.state = waiting
	c.makeWaiter().giveUp = p.Continue(func(published wire.Published, err error) {
		c.loop.post(c, func(c *conn) {
			c.state = noPoll
			c.answerPublish(published, err)
		})
	})
}

// beginPublish begins a publish, and returns its message.
func beginPublish(ctx context.Context, a *app.App, caller app.Caller, h request.Head, body []byte) (p app.Publish, m *request.Message, err error) {
	if p, err = a.BeginPublish(ctx, caller, h.Topic); err != nil {
		return p, nil, err
	}
	if m, err = request.MessageOf(h); err == nil {
		err = m.SetPayload(body, p.MostBytes)
	}
	return p, m, err
}

// answerPublish answers a publish, or refuses it.
func (c *conn) answerPublish(published wire.Published, err error) {
	if err != nil {
		c.refuse(err)
		return
	}
	if c.requests.served > 0 { // net/http has counted the one that it has read
		c.lane.cfg.Metrics.LanePublishes.Inc()
	}
	s := scratches.Get().(*scratch)
	defer s.free()
	var body [512]byte
	line := frame.AppendPublished(body[:0], published)
	s.bytes = append(c.identified(c.head().published.Append(s.bytes, len(line))), line...)
	_ = c.writeScratch(s) // step handles a failure
	c.answered(false)
}

// accept notes that the lane serves a request. It begins the entry in the access log, if the log
// selects the request.
func (c *conn) accept(r *parsed) {
	c.requests.served++
	c.requests.blanks = blanksBefore
	c.origin, c.requestID = r.fields.originIndex, r.fields.requestID
	if e := c.lane.cfg.AccessLog.Begin(); e != nil {
		c.entry = e
		e.Begun = c.lane.begun.Add(c.readAt)
		e.Client, e.Agent, e.RequestID, e.TraceID, e.Way = c.who.Address(), r.fields.agent, r.fields.requestID, observe.TraceID(r.fields.traceparent), "lane"
		switch r.form {
		case pollForm:
			e.Method, e.Route = http.MethodGet, "/v1/sessions/{id}/poll"
		case topicsForm:
			e.Method, e.Route = http.MethodGet, "/v1/poll"
		case publishForm:
			e.Method, e.Route, e.Topic = http.MethodPost, "/v1/topics/{topic}/messages", string(r.name)
		}
	}
	if !r.fields.isAllowed {
		c.lane.cfg.Origins.LogRefused(r.fields.origin) // its browser hides the answer
	}
	c.consume(r.length)
}

// callAside makes a call that waits in a goroutine. Then the loop runs the function that
// the call returned. Meanwhile the connection serves nothing else. ctx ends when the
// client leaves.
func (c *conn) callAside(r *parsed, call func(ctx context.Context) (answer func(*conn))) {
	c.accept(r)
	c.state = waiting
	ctx := observe.Continue(c.makeWaiter().client, r.fields.traceparent, r.fields.tracestate)
	c.lane.running.Go(func() {
		answer := call(ctx)
		c.loop.post(c, func(c *conn) {
			c.state = noPoll
			answer(c)
		})
	})
}

// refuse answers with the problem of err. A client that ignores refusals gets it later
// (limit.Refusal). A delayed refusal needs no goroutine and no timer: the loop checks at
// each Tick whether it is due.
func (c *conn) refuse(err error) {
	refusal, ok := errors.AsType[*limit.Refusal](err)
	if !ok || refusal.Hold <= 0 || c.lane.draining.Load() {
		c.fail(err)
		return
	}
	c.requests.refusal = err
	c.loop.delayed[c] = time.Now().Add(refusal.Hold)
}

// answerRefusal answers with the delayed refusal.
func (c *conn) answerRefusal() {
	why := c.requests.refusal
	c.requests.refusal = nil
	delete(c.loop.delayed, c)
	c.fail(why)
}

// fail answers with the problem of err, or closes the connection if err has none. A client
// that gets draining reconnects, and may reach another daemon.
func (c *conn) fail(err error) {
	p := c.lane.cfg.App.Problem(err, observe.RequestIDField(c.requestID))
	if p == nil {
		c.ending = closing
		return
	}
	h, last := c.head(), c.ending == lastAnswer || c.lane.draining.Load() || p.Code == wire.CodeDraining
	after := h.after
	if last {
		after += "Connection: close\r\n"
	}
	c.entry.Refused(p)
	_ = c.write(part{bytes: c.identified(listen.ProblemAnswer(p, h.before, after))}) // step handles a failure
	c.answered(last)
}
