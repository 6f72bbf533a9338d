// Package transport turns a session's frames into answers to long polls, into streams, and
// into the frames of two-way connections. It writes to Sinks. Packages that own connections
// implement them.
package transport

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Sink takes the bytes of answers. An answer is either one call of Whole or any number of
// calls of Send. Both return how many bytes of frames they wrote. One goroutine at a time
// calls them.
type Sink interface {
	// Whole writes a complete answer of known length: lead, which may be nil, and
	// the frames.
	Whole(lead []byte, frames []*frame.Frame) (int, error)

	// Send writes a part of an answer of unknown length, and flushes it. A part has at
	// least one byte.
	Send(lead []byte, frames []*frame.Frame) (int, error)
}

// Mode says when an answer ends.
type Mode string

// The modes; see PROTOCOL.md, Polls and acknowledgements.
const (
	Single   Mode = "single"
	Batch    Mode = "batch"
	Multiple Mode = "multiple"
	Stream   Mode = "stream"
)

// Modes returns every mode, the default first.
func Modes() []Mode { return []Mode{Batch, Single, Multiple, Stream} }

// Via is the transport that frames are sent on: a label of metrics.
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

// A Request has what a poll asks for.
type Request struct {
	session.Arrival
	Ack    uint64 // how many frames of the session the client has
	Mode   Mode
	Format frame.Format // of the whole answer

	// Gzip allows compressing a whole answer if that makes it smaller. Parts are never
	// compressed: a proxy or client that decompresses may delay a part until more bytes
	// arrive, and each part must arrive at once.
	Gzip bool
	Via  Via  // empty: stream or longpoll, by the mode
	Acks bool // of a stream: the client acks during it, if the session acks at all

	// Hello, if not nil, is sent first, and the poll does not park before it. A stream
	// without one makes its own.
	Hello *wire.Hello

	// LeftOut are positions of topics that patterns leave out, for the hello of a session. The
	// client keeps them. Those that the session has, or that no pattern matches, are ignored.
	LeftOut []wire.Position

	// Events makes the ids of an event stream: Mode is Stream and Format EventStream.
	// Otherwise it is nil.
	Events *Events
}

// acking returns how the client acks what is written.
func (r Request) acking() session.Acking {
	switch {
	case r.Mode != Stream:
		return session.AcksNext
	case r.Acks:
		return session.AcksDuring
	case r.Events.refer():
		return session.AcksLater
	}
	return session.Trusted
}

// A Server holds the state that all answers share. All methods may be called concurrently.
type Server struct {
	now atomic.Pointer[inForce]

	made    time.Time // immutable, like the next four
	meters  map[Via]*metrics.Transport
	memory  *memory.Account // counts the bytes that wait for clients
	metrics *metrics.Metrics
	traces  *observe.Traces // nil: none
	serving connections     // see Serve
}

// inForce is the configuration until the next Reload.
type inForce struct {
	Config
	limits wire.Limits
}

// New returns a Server. Hello frames carry limits. Bytes that wait for clients count in a.
// traces gets slow deliveries; nil: there are none.
func New(cfg Config, limits wire.Limits, a *memory.Account, m *metrics.Metrics, traces *observe.Traces) *Server {
	s := &Server{made: time.Now(), meters: make(map[Via]*metrics.Transport), memory: a, metrics: m, traces: traces, serving: connections{open: make(map[net.Conn]bool)}}
	s.Reload(cfg, limits)
	for _, via := range Vias() {
		s.meters[via] = m.Transport(string(via))
	}
	return s
}

// Reload puts cfg and limits in force. A parked poll keeps its timeout. A stream uses the
// new interval after its next heartbeat.
func (t *Server) Reload(cfg Config, limits wire.Limits) {
	t.now.Store(&inForce{Config: cfg.WithDefaults(), limits: limits})
}

func (t *Server) config() *inForce { return t.now.Load() }

// Config returns the configuration in force. The caller must not change it.
func (t *Server) Config() *Config { return &t.config().Config }

// Memory returns the account of the bytes that wait for clients.
func (t *Server) Memory() *memory.Account { return t.memory }

// Outcomes of polls, besides the codes of problems: labels of metrics.
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
