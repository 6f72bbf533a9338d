package transport

import (
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Reader takes apart what a client says on a connection that goes both ways, from
// the bytes as they come: it does no I/O. It is for one goroutine.
type Reader interface {
	// Read looks at b, which follows all that was taken before, and returns how many
	// bytes it took: none if it cannot go on without more. An error, a *wire.Problem,
	// is the connection's end; nothing may be read after it, nor after Closed.
	Read(b []byte) (n int, in Incoming, err error)

	// Partial reports whether a part was taken of something of which the rest is to come.
	Partial() bool

	// Held is how many bytes are kept of that.
	Held() int

	// Close lets go of that. Nothing is read after it, and it may be called again.
	Close()

	// Bye appends what a connection ends with, after the frame that says why: nothing,
	// where the end speaks for itself.
	Bye(dst []byte, why *wire.Problem) []byte
}

// Incoming is what was read: most often a command, or nothing that is whole yet.
type Incoming struct {
	Command []byte // valid until the next Read
	Answer  []byte // goes out as it is, before anything else
	Closed  bool   // the client says nothing any more, and wants nothing
}

// maxCommand is how long a command may be, with messages of so many bytes: in base64,
// or a long list of topics.
func maxCommand(messageBytes int) int { return max(1<<20, 2*messageBytes+64<<10) }

// TooSlow is the end of a connection whose client does not send the rest of a command.
func (t *Server) TooSlow() *wire.Problem {
	return wire.NewProblem(wire.CodeInvalidRequest, "send a command in one go", "the rest of a command did not come within %v", t.RestTimeout())
}

// RestTimeout is that of the Config in force.
func (t *Server) RestTimeout() time.Duration { return t.config().RestTimeout }

func commandTooLarge(limit int) *wire.Problem {
	return wire.NewProblem(wire.CodeMessageTooLarge, "send less at a time", "a command exceeds %d bytes", limit)
}
