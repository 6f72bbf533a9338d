package lane

import (
	"context"
	"net"
	"time"

	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A conversation is the work of a two-way connection: a WebSocket, or a TCP connection.
// Its poll is a stream that parks as any does. Its client sends commands instead of
// requests, which do not wait for the end of the stream. The Conversation says what to
// do with them, and when something is overdue.
//
// Commands are carried out with the poll taken back, so nothing is written before the
// reply. A command that waits gets a goroutine, and frames continue.
type conversation struct {
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
	c.begins(d.Ahead)
	d.Ahead = nil
	c.talk, c.bare, c.deflates = &conversation{Duplex: d}, true, d.Deflates
	c.begin(func(c *conn) {
		c.beginPoll(d.Session, d.Request)
		c.stepPoll() // hello goes before the replies to what was read ahead
	})
	return true
}

// now is the time of the last Tick, to the second, for what may take seconds.
func (l *Lane) now() time.Time {
	return l.begun.Add(time.Duration(l.age()) * time.Second)
}

// converse does one thing that the conversation has to do now, and reports whether it did
// anything. Commands and frames take turns.
func (c *conn) converse() bool {
	t := c.talk
	switch {
	case t.finish != nil: // no more is carried out before the client has taken the reply
		reply := t.finish()
		t.finish = nil
		c.act(t.Conversation.Reply(reply, nil, c.lane.now()))
	case t.Conversation.HasEnded():
		return c.linger()
	case !t.Conversation.Busy() && c.has():
		n, a := t.Conversation.Receive(c.bytes(), c.lane.now())
		c.consume(n)
		c.partial = n == 0
		c.act(a)
	default:
		return t.wroteFrames && c.state == begun && c.read()
	}
	return true
}

// act does what the Conversation wants.
func (c *conn) act(a transport.Action) {
	if a.Command != nil {
		reply, later, err := c.talk.Commands.Do(c.lane.life, c.talk.Session, a.Command)
		if later != nil {
			c.carryOutLater(later)
			return
		}
		a = c.talk.Conversation.Reply(reply, err, c.lane.now())
	}
	if len(a.Write) > 0 {
		_ = c.write(a.Write) // isFlushed looks whether it failed
	}
	if a.Close {
		c.ending = closing
	}
	if a.End {
		c.talk.cancel()
		c.abandonPoll()
	}
}

// carryOutLater has a command carried out while the connection continues.
func (c *conn) carryOutLater(command transport.Later) {
	ctx, giveUp := context.WithCancel(c.lane.life)
	c.talk.giveUp = giveUp
	c.lane.running.Go(func() {
		defer giveUp()
		finish := command(ctx)
		c.loop.post(nil, func(*conn) {
			if c.ending == left { // finish is called in any case
				finish()
				return
			}
			c.talk.finish = finish
			c.takeBack()
			c.proceed()
		})
	})
}

// cancel tells the command that waits, if there is one, that nobody wants its reply.
func (t *conversation) cancel() {
	if t.giveUp != nil {
		t.giveUp()
	}
}

// end ends the conversation because its connection leaves.
func (t *conversation) end() {
	t.cancel()
	if t.finish != nil {
		t.finish()
	}
	t.Conversation.Close()
}

// linger shows the client the end, and waits until it has closed: to close before could
// discard what it has not read. What it still sends is discarded.
func (c *conn) linger() bool {
	switch {
	case c.ended:
		c.ending = closing
	case c.filled > 0:
		c.consume(c.filled)
	case !c.talk.shut:
		c.talk.shut = true
		shutWriting(c.fd)
		c.talk.Conversation.Wrote(c.lane.now())
		c.awaits = itsTurn
	default:
		return false
	}
	return true
}

// overdueInConversation does what the conversation says is due.
func (c *conn) overdueInConversation() {
	if a := c.talk.Conversation.Overdue(c.lane.now()); a.Close || len(a.Write) > 0 {
		c.takeBack()
		c.act(a)
	}
}
