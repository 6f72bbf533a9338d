package lane

import (
	"context"
	"net"
	"time"

	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A duplex is what a two-way connection has besides: a WebSocket, or a TCP connection.
// Its poll is a stream that is parked on it like any; its client sends commands instead
// of requests, which do not wait for the end of the stream. The Conversation says what
// to do with them, and when something is overdue.
//
// The loop carries out commands with the poll taken back, so nothing is written before
// the reply. A command that waits gets a goroutine, and frames continue.
type duplex struct {
	transport.Duplex

	giveUp context.CancelFunc // ends the command that waits, if there is one
	finish func() *wire.Reply // of a command that has waited

	wroteFrames bool // since the connection was read
	shut        bool // the client can see the end
}

// Carry takes over a two-way connection and serves it until either side ends it. It
// returns false if the lane cannot serve it, and then nothing was touched. The lane ends
// a session of the connection's own.
func (l *Lane) Carry(nc net.Conn, d transport.Duplex) bool {
	unwrapped, _ := unwrap(nc)
	socket, ok := unwrapped.(Conn)
	if !ok || !supported || !l.handOff || len(d.Ahead) > bufferBytes || l.draining.Load() {
		return false
	}
	c := l.adopt(socket, 0)
	if c == nil {
		return false
	}
	_ = nc.Close() // the connection lives on in fd
	c.readAhead(d.Ahead)
	d.Ahead = nil
	c.duplex, c.bare, c.deflates = &duplex{Duplex: d}, true, d.Deflates
	c.begin(func(c *conn) {
		c.beginPoll(d.Session, d.Request)
		if c.polling == begun { // hello goes before the replies to what was read ahead
			c.became(c.answer.Go(false))
		}
	})
	return true
}

// now is the time of the last Tick, to the second, for what may take seconds.
func (l *Lane) now() time.Time {
	return l.begun.Add(time.Duration(l.age()) * time.Second)
}

// talks reports whether the connection is two-way and takes commands.
func (c *conn) talks() bool {
	return c.duplex != nil && !c.duplex.Conversation.Busy() && !c.duplex.Conversation.HasEnded()
}

// carryOut carries out one command that was read, if it is whole.
func (c *conn) carryOut() {
	n, a := c.duplex.Conversation.Receive(c.buf[:c.filled], c.lane.now())
	c.consume(n)
	c.partial = n == 0
	c.act(a)
}

// act does what the Conversation wants. The output is the caller's.
func (c *conn) act(a transport.Action) {
	if a.Command != nil {
		reply, later, err := c.duplex.Commands.Do(c.lane.life, c.duplex.Session, a.Command)
		if later != nil {
			c.carryOutLater(later)
			return
		}
		a = c.duplex.Conversation.Reply(reply, err, c.lane.now())
	}
	if len(a.Write) > 0 {
		_ = c.write(a.Write) // goOn looks whether it failed
	}
	if a.Close {
		c.fate = closing
	}
	if a.End {
		c.duplex.cancel()
		c.maybeFinish(true)
		if c.polling == begun {
			c.answer.Abandon()
			c.polled()
		}
	}
}

// carryOutLater has a command carried out while the connection continues.
func (c *conn) carryOutLater(command transport.Later) {
	ctx, giveUp := context.WithCancel(c.lane.life)
	c.duplex.giveUp = giveUp
	c.lane.running.Go(func() {
		defer giveUp()
		finish := command(ctx)
		c.loop.post(nil, func(*conn) { // finish is called even if c has left
			c.duplex.finish = finish
			if c.fate == left {
				c.finishCommand()
			}
			c.proceed()
		})
	})
}

// finishCommand finishes a command that waited. While the connection is on the lane, the
// output must be the caller's.
func (c *conn) finishCommand() {
	reply := c.duplex.finish()
	c.duplex.finish = nil
	if c.fate != left {
		c.act(c.duplex.Conversation.Reply(reply, nil, c.lane.now()))
	}
}

// cancel tells the command that waits, if there is one, that nobody wants its reply.
func (d *duplex) cancel() {
	if d.giveUp != nil {
		d.giveUp()
	}
}

// lingers reports whether the client of a connection that has ended has yet to close.
func (c *conn) lingers() bool {
	if c.duplex == nil || c.ended || c.failed {
		return false
	}
	if !c.duplex.shut {
		c.duplex.shut = true
		shutWriting(c.fd)
		c.duplex.Conversation.Wrote(c.lane.now())
		c.awaited = nothing
	}
	return true
}

// overdueDuplex does what is due of a two-way connection.
func (c *conn) overdueDuplex() {
	if a := c.duplex.Conversation.Overdue(c.lane.now()); a.Close || len(a.Write) > 0 {
		c.takeBack()
		c.act(a)
	}
}
