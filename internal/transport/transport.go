// Package transport is how a session's frames leave the daemon: the answers to
// long polls, and streams. What it writes to is an Answer, which the HTTP side
// implements over net/http.
package transport

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An Answer is where the bytes of one poll's answer go. Either Whole is called
// once, or Send any number of times; the methods return how many bytes of
// frames were written. They are called by one goroutine.
type Answer interface {
	// Whole writes a complete answer of known length: lead (which may be nil)
	// and then the frames.
	Whole(lead []byte, frames []*frame.Frame) (int, error)

	// Send writes a part of an answer of unknown length, and sends it off.
	Send(lead []byte, frames []*frame.Frame) (int, error)
}

// Mode is how an answer goes on.
type Mode string

// The modes; see PROTOCOL.md, Sessions and polls.
const (
	Single   Mode = "single"
	Batch    Mode = "batch"
	Multiple Mode = "multiple"
	Stream   Mode = "stream"
)

// Modes returns every mode.
func Modes() []Mode { return []Mode{Single, Batch, Multiple, Stream} }

// Via is which transport frames leave by, as metrics label it.
type Via string

// The transports.
const (
	ViaLongPoll  Via = "longpoll"
	ViaStream    Via = "stream"
	ViaSSE       Via = "sse"
	ViaWebSocket Via = "websocket"
	ViaTCP       Via = "tcp"
)

// Vias returns every transport.
func Vias() []Via { return []Via{ViaLongPoll, ViaStream, ViaSSE, ViaWebSocket, ViaTCP} }

func (r Request) via() Via {
	switch {
	case r.Via != "":
		return r.Via
	case r.Events != nil:
		return ViaSSE
	case r.Mode == Stream:
		return ViaStream
	}
	return ViaLongPoll
}

// A Request is what a poll asks for.
type Request struct {
	Ack    uint64 // frames of the session that the client has
	Mode   Mode
	Format frame.Format // of all that the Answer writes

	// Gzip says that a whole answer may be a gzip member, if that pays. What is sent in
	// parts stays as it is: a proxy or a client that decompresses may hold a part back
	// until it has more, and a part has to arrive at once.
	Gzip bool
	Via  Via  // empty: stream or longpoll, as the mode says
	Acks bool // of a stream: its client acks while it lasts, if the session acks at all

	// Hello, if not nil, goes first; a poll that says hello does not park. A stream
	// that is given none makes its own.
	Hello *wire.Hello

	// Events are the ids of an event stream's events; then Mode is Stream, and Format
	// EventStream. Else nil.
	Events *Events
}

// trusts reports whether what is written counts as had.
func (r Request) trusts() bool { return r.Mode == Stream && !r.Acks && !r.Events.refer() }

// A Server answers polls. All methods may be called concurrently.
type Server struct {
	now atomic.Pointer[inForce]

	meters  map[Via]*meter // immutable
	metrics *metrics.Metrics
}

// inForce is what a Server goes by, until a Reload.
type inForce struct {
	Config
	limits wire.Limits
}

// A meter counts what one transport does.
type meter struct {
	*metrics.Transport
	parked atomic.Int64
}

// New returns a Server. limits is what hello tells clients.
func New(cfg Config, limits wire.Limits, m *metrics.Metrics) *Server {
	s := &Server{meters: make(map[Via]*meter), metrics: m}
	s.Reload(cfg, limits)
	for _, via := range Vias() {
		s.meters[via] = &meter{Transport: m.Transport(string(via))}
	}
	return s
}

// Reload puts cfg and limits in force. A poll that is parked keeps its timeout; a
// stream takes over the heartbeat with its next.
func (t *Server) Reload(cfg Config, limits wire.Limits) {
	t.now.Store(&inForce{Config: cfg.WithDefaults(), limits: limits})
}

func (t *Server) config() *inForce { return t.now.Load() }

// CompressionMinBytes is that of the Config in force; see frame.Frame.Deflated.
func (t *Server) CompressionMinBytes() int { return t.config().CompressionMinBytes }

// Gauges adds the transports' part to g.
func (t *Server) Gauges(g *metrics.Gauges) {
	g.Parked = make(map[string]int, len(t.meters))
	for via, m := range t.meters {
		g.Parked[string(via)] = int(m.parked.Load())
	}
}

// Poll answers one poll of s. An error means that nothing was written: a
// *wire.Problem to tell the client, or anything else if the client is gone. Once
// an answer has begun it ends with an end frame instead, and Poll returns nil.
func (t *Server) Poll(ctx context.Context, s *session.Session, r Request, a Answer) error {
	m := t.meters[r.via()]
	outcome, err := t.answer(ctx, s, r, a, m)
	if err != nil {
		outcome = outcomeOf(err)
	}
	m.Polled(outcome)
	return err
}

func (t *Server) answer(ctx context.Context, s *session.Session, r Request, a Answer, m *meter) (outcome string, err error) {
	p, err := s.Poll(r.Ack, r.trusts(), time.Now())
	if err != nil {
		return "", err
	}
	if r.Acks {
		p.HearAcks()
	}
	defer func() { p.Done(time.Now()) }()
	if r.Events.refer() {
		p.Slide()
	}
	if r.Hello != nil {
		r.Hello.Limits = &t.config().limits
	}
	w := &writer{ctx: ctx, poll: p, answer: a, format: r.Format, events: r.Events, meter: m}
	switch r.Mode {
	case Stream:
		return t.streamTo(w, s, r)
	case Multiple:
		return t.multiple(w, r.Hello, t.config().limitOf(r))
	default:
		return t.batch(w, r.Hello, t.config().limitOf(r))
	}
}

// limitOf is how much a poll of this mode takes at a time. The bytes of one that is
// multiple are those of its whole answer.
func (c *inForce) limitOf(r Request) broker.Limit {
	switch r.Mode {
	case Single:
		return broker.Limit{Frames: 1, Bytes: math.MaxInt}
	case Multiple:
		return broker.Limit{Frames: c.AnswerFrames, Bytes: c.AnswerBytes} // the client reads the first while the next are taken
	}
	frames, bytes := r.Events.limit(c)
	return broker.Limit{Frames: frames, Bytes: bytes}
}

// Outcomes of polls beside the codes of problems, as metrics label them.
const (
	outcomeFrames = "frames" // answered with at least one
	outcomeEmpty  = "empty"
	outcomeGone   = "gone" // the client left
)

func outcomeOf(err error) string {
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		return string(p.Code)
	}
	return outcomeGone
}

// A writer is one answer under way.
type writer struct {
	ctx    context.Context // the request's
	poll   *session.Poll
	answer Answer
	format frame.Format
	events *Events
	meter  *meter
}

// take is Poll.Take, counted as parked.
func (w *writer) take(limit broker.Limit, wait time.Duration) ([]*frame.Frame, error) {
	w.meter.parked.Add(1)
	defer w.meter.parked.Add(-1)
	return w.poll.Take(w.ctx, limit, wait)
}

// wrote counts frames that were written.
func (w *writer) wrote(frames []*frame.Frame, n int) {
	if len(frames) == 0 {
		return
	}
	w.meter.Wrote(len(frames), n)
	if m := frames[0]; w.poll.Fresh() && m.Gap() == nil && rand.Uint32()%latencySample == 0 {
		w.meter.Waited(time.Since(m.Accepted()))
	}
}

// latencySample is of how many writes one is timed: a clock reading and a
// histogram for each would show in a broadcast's profile.
const latencySample = 16

// end writes the end frame of an answer that has begun, if err is for the client.
func (w *writer) end(err error) (outcome string) {
	p, ok := errors.AsType[*wire.Problem](err)
	if !ok {
		return outcomeGone
	}
	if last, ok := w.answer.(interface{ End(*wire.Problem) }); ok {
		last.End(p.Spread())
		return string(p.Code)
	}
	// The answer is over either way; a client that is gone misses nothing.
	_, _ = w.answer.Send(w.events.end(w.format, p.Spread()), nil)
	return string(p.Code)
}
