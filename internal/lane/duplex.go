package lane

import (
	"errors"
	"net"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A duplex is what a connection has besides that goes both ways: a WebSocket, or a
// bare one. Its poll is a stream that is parked on it like any; what its client says
// is no request but commands, which do not wait for an end of the stream.
//
// Commands are carried out in a goroutine, never by the reader, who has other
// connections to tend: they may take long, or wait. The connection is locked
// meanwhile, and its poll taken back, so nothing is written before the reply, and no
// further command is read before the client has taken what it was answered. One that
// may have to wait for long leaves the connection unlocked, and its poll goes on; see
// pending.
type duplex struct {
	transport.Duplex

	pending *pending // nil: no command is being carried out without the lock

	told  bool  // it was sent frames since it was read
	hears bool  // a goroutine is about to carry out what was read
	asked bool  // the client was asked for a sign of life, and has given none
	over  bool  // the last was written: what the client still says is thrown away
	shut  bool  // and it can see that
	rest  int64 // by when, in seconds of the lane's age, the rest of a command has to be there; 0: all is
	until int64 // by when, in seconds of the lane's age, it has to close its side then
}

// farewell is how many seconds a client may take to close a connection that is over.
const farewell = 2

// Carry takes over a connection that goes both ways and serves it, until either side
// ends it; false if it is not one for the lane, and then nothing was touched. A session
// of the connection's own is the lane's to end then.
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
	defer c.unlock()
	c.beginPoll(d.Session, d.Request)
	if c.polling == begun { // hello goes before the replies to what was read ahead
		c.became(c.answer.Go(false))
	}
	c.proceed()
	return true
}

// hear has what was read carried out.
func (c *conn) hear() {
	if !c.duplex.hears {
		c.duplex.hears = true
		c.attend((*conn).carryOut)
	}
}

// carryOut carries out the commands that were read. After some of them others have
// their turn.
func (c *conn) carryOut() {
	c.duplex.hears = false
	c.takeBack()
	for range atATime {
		if c.filled == 0 || c.partial || c.duplex.over || c.failed || c.Blocked() || c.duplex.pending != nil {
			return
		}
		n, in, err := c.duplex.Reader.Read(c.buf[:c.filled])
		if err != nil {
			c.endDuplex(err)
			return
		}
		c.consume(n)
		c.partial = n == 0
		c.noteRest(in)
		c.respond(in)
	}
}

// noteRest notes by when the rest of a command has to be there, if a part is.
func (c *conn) noteRest(in transport.Incoming) {
	d := c.duplex
	switch {
	case !d.Reader.Partial() && !(c.partial && c.filled > 0):
		d.rest = 0
	case d.rest == 0 || in.Command != nil:
		d.rest = c.lane.heads.Load().age + seconds(c.lane.polls.RestTimeout())
	}
}

// owes reports whether the rest of a command should have come.
func (c *conn) owes() bool {
	return c.duplex != nil && c.duplex.rest > 0 && c.duplex.rest < c.lane.heads.Load().age
}

// tooSlow ends a connection on which the rest of a command does not come.
func (c *conn) tooSlow() {
	c.lane.metrics.Ended(metrics.SlowBody)
	c.takeBack()
	c.endDuplex(c.lane.polls.TooSlow())
}

// respond carries out one command, if it is one, and writes what is to be answered.
func (c *conn) respond(in transport.Incoming) {
	answer := in.Answer
	if in.Command != nil {
		reply, later, err := c.duplex.Commands.Do(c.lane.life, c.duplex.Session, in.Command)
		if err != nil {
			c.endDuplex(err)
			return
		}
		if later != nil {
			c.carryOutLater(later)
		}
		if reply != nil {
			answer = c.format.AppendReply(answer, reply)
		}
	}
	if len(answer) > 0 {
		_ = c.write(answer) // goOn looks whether it failed
	}
	if in.Closed {
		c.finishDuplex()
	}
}

// endDuplex tells the client why the connection ends, if that is for it to know.
func (c *conn) endDuplex(err error) {
	problem, ok := errors.AsType[*wire.Problem](err)
	if !ok {
		c.fate = closing
		return
	}
	last := c.format.AppendEnd(nil, problem.Spread())
	_ = c.write(c.duplex.Reader.Bye(last, problem))
	c.finishDuplex()
}

// finishDuplex ends the connection's time once all is written.
func (c *conn) finishDuplex() {
	c.duplex.over = true
	c.duplex.giveUp()
	c.maybeFinish(true)
	if c.polling == begun {
		c.answer.Abandon()
		c.polled()
	}
}

// lingers reports whether the client of a connection that is over has yet to close
// its side: to close a socket that has something to be read throws away what its
// client was last sent.
func (c *conn) lingers() bool {
	if c.duplex == nil || c.ended || c.failed {
		return false
	}
	if !c.duplex.shut {
		c.duplex.shut = true
		c.duplex.until = c.lane.heads.Load().age + farewell
		c.awaited = nothing
		shutWriting(c.fd)
	}
	return c.lane.heads.Load().age <= c.duplex.until // whatever it goes on to say
}

// restDuplex is rest where the connection goes both ways.
func (c *conn) restDuplex() bool {
	switch {
	case c.duplex.over:
		return c.await(itsEnd)
	case c.duplex.Answers:
		return c.await(anAnswer)
	}
	return c.await(aFrame)
}

// silent is told that nothing was heard for long from a client that answers
// heartbeats. While it is sent messages it gets none, so it is asked once.
func (c *conn) silent() {
	if c.duplex.pending != nil {
		return // what it says may not be read yet
	}
	if c.duplex.asked {
		c.lane.metrics.Ended(metrics.Silent)
		c.fate = closing
		return
	}
	c.duplex.asked = true
	c.takeBack()
	if !c.Blocked() {
		_ = c.write(c.format.Heartbeat())
	}
}
