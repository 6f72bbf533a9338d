package transport

import (
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Conversation holds the rules of one two-way connection, a WebSocket or a TCP
// connection. It does no I/O, has no locks and reads no clock. Its driver passes in bytes
// and the time, and carries out the Actions that it returns. One goroutine at a time uses
// it.
//
// Bytes may arrive in any pieces. One command is carried out at a time: after an Action
// with a Command, Receive takes nothing before Reply. These are the time-outs:
//
//	wait                              at most                  then
//	the opening of a TCP connection   openTimeout              close
//	the rest of a command             RestTimeout              end with invalid_request
//	any bytes from a WebSocket client two heartbeats           send a heartbeat
//	an answer to that heartbeat       answerTimeout            close
//	the client's close after the end  farewell                 close
//
// No time passes for the client while its command is carried out.
type Conversation struct {
	server *Server      // immutable, like the next two
	format frame.Format // of what both sides send
	owner  memory.Owner

	reader reader                 // nil after Close
	held   memory.UnfinishedBytes // bytes of an unfinished command in reader

	state   conversationState
	busy    bool      // a command, or the opening, is being carried out
	heard   time.Time // when the client last sent bytes
	asked   time.Time // when a heartbeat was written that the client must answer; zero: none
	restDue time.Time // when the rest of a command must have arrived; zero: no part has
	due     time.Time // of the opening, and of the close after the end; zero: not yet known
}

type conversationState uint8

const (
	opening conversationState = iota // the first item on a TCP connection has not been carried out
	talking
	ended // the driver has the last bytes to write; the client may still send
)

// The time-outs that no setting changes.
const (
	openTimeout   = 10 * time.Second
	answerTimeout = 10 * time.Second
	farewell      = time.Second
)

// An Action says what the driver does next. The zero Action does nothing.
type Action struct {
	// Write is written unchanged, between frames. Then call Wrote.
	Write []byte

	// Command is carried out. Then call Reply. Until then nothing else may be written, so
	// that the reply precedes the first frame of a topic that the command added. Frames
	// continue only while a command waits for long. Command is valid until the next
	// Receive. The first one on a TCP connection says what to open; then call Opened or End.
	Command []byte

	// Large is a command, instead of Command, that takes too long to read in a loop.
	Large Large

	// End says that Write is the last. The driver writes it, closes its side, and continues
	// to receive until the client closes.
	End bool

	// Close closes the connection at once.
	Close bool
}

// A Large is a command of more than largeCommand bytes. Call it once: it inflates the command, and
// returns it as Action.Command is. An error, a *wire.Problem, ends the connection.
type Large func() (command []byte, err error)

// largeCommand is how many bytes a command may have that a loop reads and carries out. The worst
// one takes half a millisecond, and most a tenth of that.
const largeCommand = 16 << 10

// HasCommand reports whether there is a command to carry out.
func (a Action) HasCommand() bool { return a.Command != nil || a.Large != nil }

// A reader finds the commands in the bytes that a client sends. It is for one goroutine.
type reader interface {
	// Read reads b, which follows all bytes that it took before, and returns how many it
	// took. It takes none only if b has less than the head of a WebSocket frame. An error,
	// a *wire.Problem, ends the connection. Do not call Read after an error or the client's
	// close.
	Read(b []byte) (n int, in incoming, err error)

	// Partial reports whether the rest of a command or frame is missing, and Held how many
	// bytes of it the reader keeps.
	Partial() bool
	Held() int
}

// incoming is what was read: a command, a frame to answer, or neither.
type incoming struct {
	command []byte // valid until the next Read
	large   Large  // instead of command; likewise
	bytes   int    // that large keeps
	answer  []byte // is written unchanged
	closed  bool   // the client sends nothing more
}

// NewWebSocket returns the conversation of a WebSocket that was just opened. With
// inflates, compression without context takeover was negotiated. The bytes of unfinished
// commands count against owner.
func (t *Server) NewWebSocket(format frame.Format, inflates bool, owner memory.Owner, now time.Time) *Conversation {
	return &Conversation{
		server: t, format: format.OnSocket(), owner: owner, state: talking, heard: now,
		reader: newSocket(format, inflates, t.config().limits.MessageBytes),
	}
}

// NewTCP returns the conversation of a TCP connection before its first item. For owner see
// NewWebSocket.
func (t *Server) NewTCP(owner memory.Owner, now time.Time) *Conversation {
	return &Conversation{
		server: t, format: frame.CBOR, owner: owner, heard: now, due: now.Add(openTimeout),
		reader: &sequence{most: MostBytes(t.config().limits.MessageBytes)},
	}
}

// Client implements memory.Holder.
func (c *Conversation) Client() *memory.Client { return c.owner.Client() }

// Move gives the conversation to another owner, which has its connection now.
func (c *Conversation) Move(to memory.Owner) { c.owner = to }

// Format returns the format of both directions.
func (c *Conversation) Format() frame.Format { return c.format }

// Busy reports whether a command is being carried out.
func (c *Conversation) Busy() bool { return c.busy }

// HasEnded reports whether an Action said End.
func (c *Conversation) HasEnded() bool { return c.state == ended }

// Receive reads b, which follows all bytes that it took before, and returns how many it
// took. If it takes none and returns no Action, call it again with more bytes, or after
// Reply to the command that is being carried out.
func (c *Conversation) Receive(b []byte, now time.Time) (n int, a Action) {
	switch {
	case c.state == ended:
		return len(b), Action{} // discard
	case c.busy || len(b) == 0:
		return 0, Action{}
	}
	c.heard, c.asked = now, time.Time{}
	n, in, err := c.reader.Read(b)
	if full := c.held.Set(c.server.memory, int64(c.reader.Held()+in.bytes), c.owner); err == nil {
		err = full
	}
	if err != nil {
		return n, c.End(err)
	}
	switch {
	case n > 0 && !c.reader.Partial():
		c.restDue = time.Time{}
	case c.restDue.IsZero():
		c.restDue = now.Add(c.server.config().RestTimeout)
	}
	if in.closed {
		return n, c.end(in.answer)
	}
	a = Action{Write: in.answer, Command: in.command, Large: in.large}
	c.busy = a.HasCommand()
	return n, a
}

// Opened says that the first item of a TCP connection was carried out.
func (c *Conversation) Opened(now time.Time) {
	c.state, c.busy, c.heard = talking, false, now
	_ = c.held.Set(c.server.memory, int64(c.reader.Held()), c.owner) // fewer bytes are never refused
}

// Reply says that a command was carried out. r, unless it is nil, is for the client. An
// error ends the connection.
func (c *Conversation) Reply(r *wire.Reply, err error, now time.Time) Action {
	c.busy, c.heard = false, now
	switch {
	case c.state == ended:
		return Action{}
	case err != nil:
		return c.End(err)
	}
	_ = c.held.Set(c.server.memory, int64(c.reader.Held()), c.owner) // fewer bytes are never refused
	if r == nil {
		return Action{}
	}
	return Action{Write: c.format.Append(nil, wire.Content{Reply: r})}
}

// End ends the connection. The client gets err if it is a *wire.Problem.
func (c *Conversation) End(err error) Action {
	problem, ok := errors.AsType[*wire.Problem](err)
	switch {
	case c.state == ended:
		return Action{}
	case !ok:
		return Action{Close: true}
	}
	last := c.format.Append(nil, wire.Content{End: limit.Spread(problem)})
	if c.format != frame.CBOR {
		last = appendClose(last, err, problem.Code)
	}
	return c.end(last)
}

func (c *Conversation) end(last []byte) Action {
	c.state, c.due = ended, time.Time{}
	c.Close()
	return Action{Write: last, End: true}
}

// Wrote says that the client can read the bytes of an Action. Only now its time to answer a
// heartbeat, or to close after the end, begins: a client that reads slowly gets them late.
// Closing before the client does could discard bytes that it has not read.
func (c *Conversation) Wrote(now time.Time) {
	switch {
	case c.state == ended:
		c.due = now.Add(farewell)
	case !c.asked.IsZero():
		c.asked = now
	}
}

// Close drops the bytes of an unfinished command. It may be called again.
func (c *Conversation) Close() {
	c.reader = nil
	_ = c.held.Set(c.server.memory, 0, c.owner) // fewer bytes are never refused
}

// Due returns when to call Overdue; zero: not before another method was called.
func (c *Conversation) Due() time.Time {
	switch {
	case c.state == ended:
		return c.due
	case c.busy:
		return time.Time{}
	case c.state == opening:
		return c.due
	}
	var silent time.Time // when a WebSocket client has been silent for too long; a TCP client may be
	switch {
	case c.format == frame.CBOR:
	case !c.asked.IsZero():
		silent = c.asked.Add(answerTimeout)
	default:
		silent = c.heard.Add(2 * c.server.config().Heartbeat)
	}
	if silent.IsZero() || !c.restDue.IsZero() && c.restDue.Before(silent) {
		return c.restDue
	}
	return silent
}

// Overdue handles a time-out. It does nothing before Due.
func (c *Conversation) Overdue(now time.Time) Action {
	due := c.Due()
	switch {
	case due.IsZero() || now.Before(due):
		return Action{}
	case c.state != talking:
		return Action{Close: true}
	case due.Equal(c.restDue):
		c.server.metrics.Ended(metrics.SlowBody)
		return c.End(problem.New(wire.CodeInvalidRequest, "send each command without pauses",
			"the rest of a command did not arrive within %v", c.server.config().RestTimeout))
	case c.asked.IsZero():
		c.asked = now
		return Action{Write: c.format.Heartbeat()}
	}
	c.server.metrics.Ended(metrics.Silent)
	return Action{Close: true}
}

// MostBytes returns how long a command may be if messages have at most this many bytes. A
// command may have a message in base64, or a long list of topics. The bound is the same for a body
// over HTTP with the same content, so that a client can fall back from one to the other.
func MostBytes(messageBytes int) int { return max(1<<20, 2*messageBytes+64<<10) }

func commandTooLarge(limit int) *wire.Problem {
	return problem.New(wire.CodeMessageTooLarge, "send smaller commands", "a command must have at most %d bytes", limit)
}
