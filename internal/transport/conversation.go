package transport

import (
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Conversation holds the rules of one two-way connection, a WebSocket or a TCP
// connection. It does no I/O, has no locks and reads no clock: its driver passes in
// bytes and the time, and carries out the Actions that come back. One goroutine at a
// time uses it.
//
// Commands arrive in any cut, and one is carried out at a time: after an Action with a
// Command, Receive takes nothing before Reply. These are the time-outs:
//
//	awaited                           for at most              then
//	the opening of a TCP connection   openTimeout              close
//	the rest of a command             RestTimeout              end with invalid_request
//	anything from a WebSocket client  two heartbeats           send a heartbeat
//	an answer to that heartbeat       answerTimeout            close
//	the close after the end           farewell                 close
//
// No time passes for the client while its command is carried out.
type Conversation struct {
	server *Server      // immutable, like the next two
	format frame.Format // of what both sides send
	owner  memory.Owner

	reader reader                 // nil: nothing is read any more
	held   memory.UnfinishedBytes // what reader keeps of an unfinished command

	state   conversationState
	busy    bool      // a command, or the opening, is being carried out
	heard   time.Time // when the client last sent something
	asked   time.Time // when a heartbeat was written that it has to answer; zero: none was
	restDue time.Time // when the rest of a command has to be there; zero: no part has arrived
	due     time.Time // of the opening, and of the close after the end; zero: not yet known
}

type conversationState uint8

const (
	opening conversationState = iota // the first item on a TCP connection is awaited
	talking
	ended // the last bytes were given to the driver; the client may still talk
)

// The time-outs that no setting changes.
const (
	openTimeout   = 10 * time.Second
	answerTimeout = 10 * time.Second
	farewell      = time.Second
)

// An Action is what the driver does next. The zero Action is nothing.
type Action struct {
	// Write goes out as it is, between frames. Wrote follows.
	Write []byte

	// Command is to be carried out; Reply follows. Until then nothing else may be
	// written, so that the reply precedes the first frame of what the command added.
	// Only while a command waits for long, frames continue. It is valid until the next
	// Receive. The first on a TCP connection says what to open; Opened or End follows.
	Command []byte

	// End says that Write was the last: the driver ends its side once that is written, and
	// continues to receive until the client closes.
	End bool

	// Close closes the connection at once.
	Close bool
}

// A reader finds the commands in what a client sends. It is for one goroutine.
type reader interface {
	// Read looks at b, which follows all that was taken before, and returns how many
	// bytes it took: none if it needs more, which are never more than a WebSocket
	// frame's head. An error, a *wire.Problem, is the connection's end; nothing may be
	// read after it, nor after the client's close.
	Read(b []byte) (n int, in incoming, err error)

	// Partial reports whether the rest of something is still to come, and Held how many
	// bytes are kept of it.
	Partial() bool
	Held() int

	// AppendBye appends what follows the end frame.
	AppendBye(dst []byte, why *wire.Problem) []byte
}

// incoming is what was read: a command, something to answer, or neither.
type incoming struct {
	command []byte // valid until the next Read
	answer  []byte // to be written as it is
	closed  bool   // the client sends nothing more
}

// NewWebSocket returns the conversation of a WebSocket that was just opened. With
// inflates, compression without context takeover was negotiated. The owner is that of
// the bytes that the connection makes the server hold.
func (t *Server) NewWebSocket(format frame.Format, inflates bool, owner memory.Owner, now time.Time) *Conversation {
	return &Conversation{
		server: t, format: format.OnSocket(), owner: owner, state: talking, heard: now,
		reader: newSocket(format, inflates, t.config().limits.MessageBytes),
	}
}

// NewTCP returns the conversation of a TCP connection that has yet to say what it
// opens. For the owner see NewWebSocket.
func (t *Server) NewTCP(owner memory.Owner, now time.Time) *Conversation {
	return &Conversation{
		server: t, format: frame.CBOR, owner: owner, heard: now, due: now.Add(openTimeout),
		reader: newSequence(t.config().limits.MessageBytes),
	}
}

// Client implements memory.Holder.
func (c *Conversation) Client() *memory.Client { return c.owner.Client() }

// Format returns the format of what both sides send.
func (c *Conversation) Format() frame.Format { return c.format }

// Busy reports whether a command is being carried out.
func (c *Conversation) Busy() bool { return c.busy }

// HasEnded reports whether an Action said End.
func (c *Conversation) HasEnded() bool { return c.state == ended }

// Receive looks at b, which follows all that was taken before, and returns how many
// bytes it took. If it takes none and there is nothing to do, more has to arrive, or
// the command that is being carried out has to end.
func (c *Conversation) Receive(b []byte, now time.Time) (n int, a Action) {
	switch {
	case c.state == ended:
		return len(b), Action{} // whatever it says
	case c.busy || len(b) == 0:
		return 0, Action{}
	}
	c.heard, c.asked = now, time.Time{}
	n, in, err := c.reader.Read(b)
	if full := c.held.Set(c.server.memory, int64(c.reader.Held()), c.owner); err == nil {
		err = full
	}
	if err != nil {
		return n, c.End(err)
	}
	switch {
	case n > 0 && !c.reader.Partial():
		c.restDue = time.Time{}
	case c.restDue.IsZero():
		c.restDue = now.Add(c.server.RestTimeout())
	}
	if in.closed {
		return n, c.end(in.answer)
	}
	c.busy = in.command != nil
	return n, Action{Write: in.answer, Command: in.command}
}

// Opened says that the first item of a TCP connection was carried out.
func (c *Conversation) Opened(now time.Time) {
	c.state, c.busy, c.heard = talking, false, now
}

// Reply says that a command was carried out: with a reply, if it is not nil, or with an
// error that ends the connection.
func (c *Conversation) Reply(r *wire.Reply, err error, now time.Time) Action {
	c.busy, c.heard = false, now
	switch {
	case c.state == ended:
		return Action{}
	case err != nil:
		return c.End(err)
	case r == nil:
		return Action{}
	}
	return Action{Write: c.format.Append(nil, wire.Content{Reply: r})}
}

// End ends the connection. The client is told why if err is a *wire.Problem.
func (c *Conversation) End(err error) Action {
	problem := asProblem(err)
	switch {
	case c.state == ended:
		return Action{}
	case problem == nil:
		return Action{Close: true}
	}
	return c.end(c.reader.AppendBye(c.format.Append(nil, wire.Content{End: problem.Spread()}), problem))
}

func (c *Conversation) end(last []byte) Action {
	c.state, c.due = ended, time.Time{}
	c.Close()
	return Action{Write: last, End: true}
}

// Wrote says that the client can read what was written for an Action. Its time to answer
// a heartbeat, and to close after the end, begins now: a client that reads slowly gets
// these late. To close before it does could discard what it has not read yet.
func (c *Conversation) Wrote(now time.Time) {
	switch {
	case c.state == ended:
		c.due = now.Add(farewell)
	case !c.asked.IsZero():
		c.asked = now
	}
}

// Close gives up what is kept of an unfinished command. It may be called again.
func (c *Conversation) Close() {
	c.reader = nil
	_ = c.held.Set(c.server.memory, 0, c.owner) // less is never too much
}

// Due returns when Overdue has to be called; zero: not before another call.
func (c *Conversation) Due() time.Time {
	switch {
	case c.state == ended:
		return c.due
	case c.busy:
		return time.Time{}
	case c.state == opening:
		return c.due
	}
	silent := c.silentDue()
	if silent.IsZero() || !c.restDue.IsZero() && c.restDue.Before(silent) {
		return c.restDue
	}
	return silent
}

// silentDue returns when a WebSocket client has sent nothing for too long. A TCP client
// may be silent for ever.
func (c *Conversation) silentDue() time.Time {
	switch {
	case c.format == frame.CBOR:
		return time.Time{}
	case !c.asked.IsZero():
		return c.asked.Add(answerTimeout)
	}
	return c.heard.Add(2 * c.server.config().Heartbeat)
}

// Overdue is called once Due has passed. It does nothing before.
func (c *Conversation) Overdue(now time.Time) Action {
	due := c.Due()
	switch {
	case due.IsZero() || now.Before(due):
		return Action{}
	case c.state != talking:
		return Action{Close: true}
	case due.Equal(c.restDue):
		c.server.metrics.Ended(metrics.SlowBody)
		return c.End(wire.NewProblem(wire.CodeInvalidRequest, "send a command in one go",
			"the rest of a command did not come within %v", c.server.RestTimeout()))
	case c.asked.IsZero():
		c.asked = now
		return Action{Write: c.format.Heartbeat()}
	}
	c.server.metrics.Ended(metrics.Silent)
	return Action{Close: true}
}

// RestTimeout is that of the Config in force.
func (t *Server) RestTimeout() time.Duration { return t.config().RestTimeout }

// Silence is how long a WebSocket client may send nothing.
func (t *Server) Silence() time.Duration { return 2*t.config().Heartbeat + answerTimeout }

// maxCommand is how long a command may be, with messages of so many bytes: in base64,
// or a long list of topics.
func maxCommand(messageBytes int) int { return max(1<<20, 2*messageBytes+64<<10) }

func commandTooLarge(limit int) *wire.Problem {
	return wire.NewProblem(wire.CodeMessageTooLarge, "send less at a time", "a command exceeds %d bytes", limit)
}

func asProblem(err error) *wire.Problem {
	problem, _ := errors.AsType[*wire.Problem](err)
	return problem
}
