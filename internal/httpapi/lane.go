package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// LaneWay is how polls wait on the lane.
type LaneWay string

// The ways; see the package lane.
const (
	LaneOff     LaneWay = "off" // or empty
	LaneChannel LaneWay = "channel"
	LaneHandOff LaneWay = "handoff"
)

// laneIdle is how long a connection on the lane may be silent between requests, as
// on net/http.
const laneIdle = 2 * time.Minute

func (a *API) openLane() {
	if a.Lane == LaneOff || a.Lane == "" {
		return
	}
	a.lane = lane.New(lane.Config{
		API: (*laneAPI)(a), Polls: a.Polls, Metrics: a.Metrics, Origins: a.origins, HandOff: a.Lane == LaneHandOff,
		WriteTimeout: a.WriteTimeout, Idle: laneIdle,
	})
}

// Listener returns where connections come back from the lane, or nil without one.
// The http.Server must serve it beside its own, and have ConnContext.
func (a *API) Listener() net.Listener {
	if a.lane == nil {
		return nil
	}
	return a.lane.Listener()
}

// ConnContext is for http.Server.ConnContext.
func (a *API) ConnContext(ctx context.Context, c net.Conn) context.Context {
	return listen.NewContext(ctx, c)
}

// Tick makes the lane's answers carry the second that now is in.
func (a *API) Tick(now time.Time) {
	if a.lane != nil {
		a.lane.Tick(now)
	}
}

// Drain closes the lane's connections, those with a poll after its answer; those that
// go both ways end with their sessions. The channel is closed when none of either is
// left. Refusals are held no more: while one is, with the body unread, net/http does
// not notice that its connection was cut off.
func (a *API) Drain() <-chan struct{} {
	a.Limiter.Release()
	none := a.Polls.Drain()
	if a.lane == nil {
		return none
	}
	a.lane.Drain()
	all := make(chan struct{})
	go func() {
		<-none
		<-a.lane.Drained()
		close(all)
	}()
	return all
}

// Close closes what Drain has left. The channel of that is closed then, too.
func (a *API) Close() {
	a.Polls.Close()
	if a.lane != nil {
		a.lane.Close()
	}
}

// laneAPI is what the lane calls: the same functions as the routes, for requests
// that were read without net/http. What they refuse, they refuse alike. One that panics
// goes to net/http, which ends its connection if it panics again.
type laneAPI API

// Poll finds the session of a poll and reads its query. A session that has ended
// says so itself when it is polled.
func (a *laneAPI) Poll(id []byte, known *session.Session, query []byte, accepts lane.Accepts, from lane.From) (s *session.Session, req transport.Request, err error) {
	defer (*API)(a).survive(&err)
	return a.poll(id, known, query, accepts, from)
}

func (a *laneAPI) poll(id []byte, known *session.Session, query []byte, accepts lane.Accepts, from lane.From) (*session.Session, transport.Request, error) {
	p, err := a.admit(limit.Polls, from)
	if err != nil {
		return nil, transport.Request{}, err
	}
	s := known
	if s == nil || s.ID() != string(id) {
		if s, err = a.Sessions.GetBytes(id); err != nil {
			return nil, transport.Request{}, (*API)(a).maybeMissed(p, err)
		}
	}
	// Fast path: what a client says that only polls.
	if req, ok := plainPoll(query); ok && !accepts.None && s.Acks() {
		req.Format, req.Gzip = accepts.Format, accepts.Gzip
		return s, req, nil
	}
	q, err := parseQuery(string(query))
	if err != nil {
		return nil, transport.Request{}, err
	}
	req, err := pollRequest(q, s)
	if err == nil {
		req.Gzip = accepts.Gzip
		req.Format, err = formatOf(q, accepts)
	}
	return s, req, err
}

// PollTopics opens what a stateless poll has for a session.
func (a *laneAPI) PollTopics(query []byte, accepts lane.Accepts, from lane.From) (s *session.Session, req transport.Request, err error) {
	defer (*API)(a).survive(&err)
	return a.pollTopics(query, accepts, from)
}

func (a *laneAPI) pollTopics(query []byte, accepts lane.Accepts, from lane.From) (*session.Session, transport.Request, error) {
	q, unreadable := parseQuery(string(query))
	topics, badTopic := topicsOf(q)
	if slices.ContainsFunc(topics, isPattern) {
		return nil, transport.Request{}, errNotServed // to look for its topics may take long
	}
	p, err := a.admit(limit.Polls, from) // whatever is asked
	if err = cmp.Or(err, unreadable, badTopic); err != nil {
		return nil, transport.Request{}, err
	}
	return (*API)(a).openStateless(p, q, topics, accepts)
}

func isPattern(start wire.Start) bool { return wire.IsPattern(start.Topic) }

// errNotServed sends a request to net/http.
var errNotServed = errors.New("not served on the lane")

// End ends the session of a stateless poll.
func (a *laneAPI) End(s *session.Session) { a.Sessions.End(s) }

// admit asks who it is, and whether that may come now.
func (a *laneAPI) admit(kind limit.Kind, from lane.From) (asker, error) {
	p, err := (*API)(a).askerFrom(from)
	if err != nil {
		return p, err
	}
	return p, a.Limiter.Admit(kind, p.Who)
}

// noPatience is a context that is done: the lane cannot wait, and what would have to
// goes to net/http.
var noPatience = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// plainPoll reads "ack=K&mode=M", in which nothing is escaped; anything else is for
// the full reading.
func plainPoll(query []byte) (transport.Request, bool) {
	req := transport.Request{Mode: transport.Batch}
	rest, ok := bytes.CutPrefix(query, []byte("ack="))
	n := 0
	for n < len(rest) && n < maxPlainDigits && rest[n] >= '0' && rest[n] <= '9' {
		req.Ack = req.Ack*10 + uint64(rest[n]-'0')
		n++
	}
	if !ok || n == 0 {
		return req, false
	}
	if rest = rest[n:]; len(rest) == 0 {
		return req, true
	}
	mode, ok := bytes.CutPrefix(rest, []byte("&mode="))
	for _, m := range plainModes {
		if ok && string(mode) == string(m) {
			req.Mode = m
			return req, true
		}
	}
	return req, false
}

var plainModes = []transport.Mode{transport.Batch, transport.Stream, transport.Single, transport.Multiple}

// maxPlainDigits keeps an ack below maxAck.
const maxPlainDigits = 15

// Publish takes one message, unless the application has to be asked about it.
func (a *laneAPI) Publish(in lane.Publish) (published wire.Published, err error) {
	defer (*API)(a).survive(&err)
	return a.publish(in)
}

func (a *laneAPI) publish(in lane.Publish) (wire.Published, error) {
	api := (*API)(a)
	topic, badTopic := checkTopic(string(in.Topic))
	if api.Hook.Wants(topic) {
		return wire.Published{}, errNotServed
	}
	p, err := api.askerFrom(in.From)
	if err != nil {
		return wire.Published{}, err
	}
	if api.isUnderWay(p, topic, in.IdempotencyKey) {
		return wire.Published{}, errNotServed
	}
	call, err := a.Limiter.Begin(noPatience, p.Who) // first: what goes to net/http must have spent nothing
	if err != nil {
		return wire.Published{}, err
	}
	defer call.End()
	if err := a.Limiter.Admit(limit.Publishes, p.Who); err != nil {
		return wire.Published{}, err
	}
	if badTopic != nil {
		return wire.Published{}, badTopic
	}
	if err := api.mayPublish(p, topic); err != nil {
		return wire.Published{}, err
	}
	m, err := messageOf(topic, string(in.Query), header(in.ContentType), header(in.IdempotencyKey))
	if err != nil {
		return wire.Published{}, err
	}
	done, err := api.publishing(p, m.session)
	if err != nil {
		return wire.Published{}, err
	}
	defer done()
	return api.takeMessage(noPatience, p.Principal, m, bytes.Clone(in.Body))
}

// isUnderWay reports whether a publish would have to wait for one with its idempotency
// key. It is asked before anything is spent; for one that begins a moment later is
// waited at twice the price.
func (a *API) isUnderWay(p asker, topic, idempotencyKey string) bool {
	// Fast path: most have none.
	if idempotencyKey == "" {
		return false
	}
	key, err := wire.ParseIdempotencyKey(idempotencyKey)
	return err == nil && a.Broker.IsUnderWay(p.Name, topic, key)
}

// header is a header's values, as net/http has them.
func header(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// Accepts reads an Accept and an Accept-Encoding header.
func (a *laneAPI) Accepts(accept, encoding string) lane.Accepts {
	return acceptsOf(http.Header{"Accept": header(accept), "Accept-Encoding": header(encoding)})
}
