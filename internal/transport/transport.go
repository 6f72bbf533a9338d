// Package transport turns a session's frames into answers: of long polls, of streams
// and of two-way connections. It writes to Sinks, which the rooms with connections
// implement.
package transport

import (
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Sink is where the bytes of answers go. An answer is either one call of Whole or
// any number of calls of Send; both return how many bytes of frames they wrote. One
// goroutine calls them.
type Sink interface {
	// Whole writes a complete answer of known length: lead, which may be nil, and
	// the frames.
	Whole(lead []byte, frames []*frame.Frame) (int, error)

	// Send writes a part of an answer of unknown length, and flushes it.
	Send(lead []byte, frames []*frame.Frame) (int, error)
}

// Mode says when an answer ends.
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

// Via is the transport that frames leave by: a label of metrics.
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
	session.Arrival
	Ack    uint64 // frames of the session that the client has
	Mode   Mode
	Format frame.Format // of the whole answer

	// Gzip allows compressing a whole answer, where that makes it smaller. Parts are
	// never compressed: a proxy or a client that decompresses may delay a part until
	// more comes, and each part must arrive at once.
	Gzip bool
	Via  Via  // empty: stream or longpoll, by the mode
	Acks bool // of a stream: the client acks during it, if the session acks at all

	// Hello, if not nil, goes first, and the poll does not park before it. A stream
	// without one makes its own.
	Hello *wire.Hello

	// Events are the ids of an event stream's events: Mode is Stream and Format
	// EventStream. Otherwise nil.
	Events *Events
}

// trusts reports whether frames count as acked once they are written.
func (r Request) trusts() bool { return r.Mode == Stream && !r.Acks && !r.Events.refer() }

// A Server holds what all answers share. All methods may be called concurrently.
type Server struct {
	now atomic.Pointer[inForce]

	made    time.Time // immutable, like the next three
	meters  map[Via]*meter
	memory  *memory.Account // of the bytes that wait for clients
	metrics *metrics.Metrics
	serving connections // see Serve
}

// inForce is the configuration until the next Reload.
type inForce struct {
	Config
	limits wire.Limits
}

// A meter counts what one transport writes.
type meter struct {
	*metrics.Transport
	parked atomic.Int64
}

// New returns a Server. Hello frames carry limits; bytes that wait count in a.
func New(cfg Config, limits wire.Limits, a *memory.Account, m *metrics.Metrics) *Server {
	s := &Server{made: time.Now(), meters: make(map[Via]*meter), memory: a, metrics: m}
	s.Reload(cfg, limits)
	for _, via := range Vias() {
		s.meters[via] = &meter{Transport: m.Transport(string(via))}
	}
	return s
}

// Reload puts cfg and limits in force. A parked poll keeps its timeout; a stream uses
// the new heartbeat from its next one.
func (t *Server) Reload(cfg Config, limits wire.Limits) {
	t.now.Store(&inForce{Config: cfg.WithDefaults(), limits: limits})
}

func (t *Server) config() *inForce { return t.now.Load() }

// Memory returns the account of the bytes that wait for clients.
func (t *Server) Memory() *memory.Account { return t.memory }

// CompressionMinBytes returns that of the Config in force; see frame.Frame.Deflated.
func (t *Server) CompressionMinBytes() int { return t.config().CompressionMinBytes }

// Gauges sets the transports' part of g.
func (t *Server) Gauges(g *metrics.Gauges) {
	g.Parked = make(map[string]int, len(t.meters))
	for via, m := range t.meters {
		g.Parked[string(via)] = int(m.parked.Load())
	}
}

// limitOf is how much a poll of this mode takes at a time. In mode multiple the bytes
// are those of the whole answer.
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

// Outcomes of polls besides the codes of problems: labels of metrics.
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
