package lane

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Converse implements transport.Host.
func (l *Lane) Converse(c net.Conn) *transport.Conversation {
	return l.cfg.Polls.NewTCP(&listen.Owner{Who: listen.Counted(c).Who(nil), Conn: listen.Of(c)}, time.Now())
}

// Open implements transport.Host.
func (l *Lane) Open(c net.Conn, first []byte) (transport.Duplex, error) {
	caller := app.Caller{Who: listen.Counted(c).Who(nil)}
	if secure, ok := c.(*tls.Conn); ok {
		state := secure.ConnectionState()
		caller.Credentials.Certificate = listen.Shown(c, &state)
	}
	asked := request.ConnectInItem(first, &caller.Credentials)
	o, err := l.cfg.App.BeginOpen(l.life, caller, limit.Sessions, app.OnTopics(asked.Session))
	if err == nil && asked.Fault == nil { // first may be large
		err = o.Decode(len(first), func() error { return asked.Complete(first, l.cfg.App.MostNamed()) })
	}
	var d transport.Duplex
	if err == nil {
		d, err = o.Connect(asked, "tcp")
	}
	if err == nil {
		if conn := listen.Of(c); conn != nil {
			d.Request.Arrival = session.Arrival{At: conn.LastRead(), Client: conn}
		}
		return d, nil
	}
	if refusal, ok := errors.AsType[*limit.Refusal](err); ok && !l.cfg.Limiter.Hold(context.Background(), refusal) {
		return d, app.ErrClientGone
	}
	if p := l.cfg.App.Problem(err); p != nil {
		return d, p
	}
	return d, err
}

// Carry implements transport.Host. It also serves WebSockets. A connection that the loops
// cannot take has two goroutines.
func (l *Lane) Carry(ctx context.Context, c net.Conn, d transport.Duplex) {
	listen.Of(c).Opened()
	if !l.takeDuplex(c, d) {
		defer l.cfg.App.End(d.Session)
		l.cfg.Polls.Serve(ctx, c, d)
	}
}

// A conversation is the work of a two-way connection: a WebSocket or a TCP connection. Its
// poll is a stream, which parks as any poll does. Its client sends commands, which do not
// wait for the end of the stream. The transport.Conversation says what to do with them,
// and when a time-out has passed.
//
// The loop takes the poll back while it carries a command out, so that the reply precedes
// later frames. A command that waits, or takes long, gets a goroutine, and frames continue
// until it is about to change what the client gets.
type conversation struct {
	*transport.Conversation
	session *session.Session
	do      func(ctx context.Context, s *session.Session, a transport.Action, resume transport.Resume) (*wire.Reply, transport.Later, context.CancelFunc, error)

	giveUp context.CancelFunc // ends the command that waits, if any: nobody needs its reply
	resume transport.Resume   // conn.resume; bound once, so that a command allocates nothing
	finish transport.Finish   // the second half of a publish that has waited
	lend   chan struct{}      // closed to lend the output to the second half of another command; nil: none asks for it
	lent   pollState          // the state of the poll before

	wroteFrames bool // since the last read
	shut        bool // our side is closed
}

// takeDuplex takes over a two-way connection and serves it until either side ends it. It
// returns false if it cannot; then it has changed nothing. If it returns true, the lane
// ends the session of a connection without session=.
func (l *Lane) takeDuplex(nc net.Conn, d transport.Duplex) bool {
	under := movable(nc)
	if under == nil || l.cfg.Way != HandOff || len(d.Ahead) > bufferBytes {
		return false
	}
	c := l.adopt(under)
	if c == nil {
		return false
	}
	_ = nc.Close() // c.fd keeps the connection open
	c.count(talkBytes)
	c.prefill(d.Ahead)
	c.who, c.bare, c.deflates = d.Who, true, d.Deflates
	// Of d it keeps no more: the request that opened the connection takes 1.6 KB.
	c.talk = &conversation{Conversation: d.Conversation, session: d.Session, do: d.Do, giveUp: func() {}, resume: c.resume}
	d.Conversation.Move(c)
	c.begin(func(c *conn) {
		if c.beginPoll(d.Session, d.Request); c.state == begun {
			c.continuePoll() // hello precedes the replies to commands that were read ahead
		}
	})
	return true
}

// now returns the time of the last Tick, to the second, for time-outs of seconds.
func (l *Lane) now() time.Time {
	return l.begun.Add(time.Duration(l.age.Load()) * time.Second)
}

// converse takes one step of the conversation, and reports whether it did anything.
// Commands and frames take turns.
func (c *conn) converse() bool {
	t := c.talk
	switch {
	case t.finish != nil: // no other command is carried out before the client has the reply
		reply, err := t.finish()
		t.finish = nil
		c.act(t.Reply(reply, err, c.lane.now()))
	case t.lend != nil:
		t.lent, c.state = c.state, waiting
		t.letFinish()
	case t.HasEnded():
		return c.linger()
	case !t.Busy() && c.filled > 0 && !c.partial:
		n, a := t.Receive(c.buf[:c.filled], c.lane.now())
		c.consume(n)
		c.partial = n == 0
		c.act(a)
	default:
		return t.wroteFrames && c.state == begun && c.read()
	}
	return true
}

// act carries out an Action.
func (c *conn) act(a transport.Action) {
	if a.HasCommand() {
		c.spend(len(a.Command))
		reply, later, giveUp, err := c.talk.do(c.lane.life, c.talk.session, a, c.talk.resume)
		switch {
		case giveUp != nil:
			c.talk.giveUp = giveUp
			c.lane.running.Add(1) // until resume
			return
		case later != nil:
			c.carryOutLater(later)
			return
		}
		a = c.talk.Reply(reply, err, c.lane.now())
	}
	if len(a.Write) > 0 {
		_ = c.write(part{bytes: a.Write}) // step handles a failure
	}
	if a.Close {
		c.ending = closing
	}
	if a.End {
		c.talk.giveUp()
		c.abandonPoll()
	}
}

// carryOutLater carries out a command in a goroutine while the connection continues. The
// second half has the output, so that nothing is written before the reply.
func (c *conn) carryOutLater(command transport.Later) {
	ctx, giveUp := context.WithCancel(c.lane.life)
	c.talk.giveUp = giveUp
	c.lane.running.Go(func() {
		defer giveUp()
		finish, release := command(ctx)
		lend := make(chan struct{})
		c.loop.post(nil, func(*conn) {
			c.talk.lend = lend
			if c.ending == left { // finish must be called in any case
				c.talk.letFinish()
				return
			}
			c.takeBack()
			c.proceed()
			if c.talk.lend != nil { // the output is not free
				release()
			}
		})
		<-lend
		reply, err := finish()
		c.loop.post(c, func(c *conn) {
			c.state = c.talk.lent
			c.act(c.talk.Reply(reply, err, c.lane.now()))
		})
	})
}

// letFinish lets a goroutine finish its command, if one waits for that.
func (t *conversation) letFinish() {
	if t.lend != nil {
		close(t.lend)
		t.lend = nil
	}
}

// resume has the loop finish a publish that has waited. Any goroutine may call it.
func (c *conn) resume(finish transport.Finish) {
	c.loop.post(nil, func(*conn) {
		defer c.lane.running.Done()
		if c.ending == left { // finish must be called in any case
			_, _ = finish()
			return
		}
		c.talk.finish = finish
		c.takeBack()
		c.proceed()
	})
}

// end ends the conversation because its connection leaves.
func (t *conversation) end() {
	t.giveUp()
	t.letFinish()
	if t.finish != nil {
		_, _ = t.finish()
	}
	t.Conversation.Close()
}

// linger closes our side, and waits until the client has closed its side. It discards
// what the client still sends. Closing both sides at once could discard bytes that the
// client has not read.
func (c *conn) linger() bool {
	switch {
	case c.ended:
		c.ending = closing
	case c.filled > 0:
		c.consume(c.filled)
	case !c.talk.shut:
		c.talk.shut = true
		shutWriting(c.fd)
		c.talk.Wrote(c.lane.now())
		c.waitsFor = waitTurn
	default:
		return false
	}
	return true
}
