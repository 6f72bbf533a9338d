package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Commands carries out what the client of one connection asks for.
type Commands interface {
	// Do carries out one command of the session's client. The reply, if there is one,
	// is to be told; the error, a *wire.Problem, ends the connection. It may wait, and
	// gives up when ctx is done. A command that may have to wait for long is returned
	// as later, not carried out.
	Do(ctx context.Context, s *session.Session, command []byte) (reply *wire.Reply, later Later, err error)
}

// Later carries out a command, as Do does, while the frames of the session go on. No
// other command is carried out before its reply, if there is one, was told. It is
// called once.
type Later func(ctx context.Context) *wire.Reply

// A Duplex is what a connection carries that goes both ways: the frames of one session
// out, the commands of its client in.
type Duplex struct {
	Session  *session.Session
	Request  Request // mode Stream
	Reader   Reader  // closed by who carries it
	Commands Commands
	Ahead    []byte // what was read of the connection before

	// Answers says that the client answers heartbeats, so that one from which nothing
	// comes for long is taken for dead.
	Answers bool

	// Deflates says that the messages of a WebSocket may be deflated.
	Deflates bool
}

// Serve serves a connection that goes both ways, until either side ends it, and closes
// it. It is the plain way, for every kind of connection: a goroutine reads, another
// waits for frames and writes them. The lane has a shorter one.
func (t *Server) Serve(ctx context.Context, c net.Conn, d Duplex) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer d.Reader.Close()
	l := &line{server: t, conn: c, duplex: d, asked: time.Now(), greeted: make(chan struct{})}
	var writing sync.WaitGroup
	writing.Go(func() {
		defer cancel() // whoever reads has nobody left to answer
		var a Answer
		a.Init(t, l, false)
		err := a.Begin(d.Session, d.Request)
		if err == nil {
			err = a.finish(ctx)
		}
		if problem := asProblem(err); problem != nil {
			l.End(problem.Spread())
		}
	})
	stop := context.AfterFunc(ctx, l.endWriting)
	if why := l.read(ctx); why != nil {
		l.End(why)
		cancel()
		l.discard()
	}
	cancel()
	stop()
	writing.Wait()
	c.Close()
}

// A line is a connection that goes both ways as Serve has it. Its writer and its
// reader both write to it.
type line struct {
	server *Server
	conn   net.Conn
	duplex Duplex // immutable

	// Owned by who reads.
	restBy  time.Time // when the rest of a command has to be there; zero: all is there
	whole   bool      // a command was read to its end
	bounded bool      // there is a deadline for reading

	greet   sync.Once
	greeted chan struct{} // closed when hello was written

	mu    sync.Mutex // held by who writes: whole frames
	over  bool       // the last was written
	out   []byte     // memory to put small frames together
	asked time.Time  // when the last heartbeat went
}

// Whole implements Sink: there is no answer that ends.
func (l *line) Whole([]byte, []*frame.Frame) (int, error) {
	panic("BUG: a connection that goes both ways has no whole answers")
}

// Send implements Sink.
func (l *line) Send(lead []byte, frames []*frame.Frame) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.greet.Do(func() { close(l.greeted) })
	return l.writeLocked(lead, frames)
}

var errOver = errors.New("the connection is over")

// writeLocked writes lead and frames, small ones together. A client that is sent
// messages all the time is asked for signs of life between them.
func (l *line) writeLocked(lead []byte, frames []*frame.Frame) (n int, err error) {
	if l.over {
		return 0, errOver
	}
	out := append(l.out[:0], lead...)
	if l.duplex.Answers && time.Since(l.asked) > l.server.config().Heartbeat {
		l.asked = time.Now()
		out = append(out, l.duplex.Request.Format.Heartbeat()...)
	}
	for _, f := range frames {
		b := l.bytesOf(f)
		n += len(f.Bytes(l.duplex.Request.Format.OffSocket()))
		if len(out)+len(b) > atOnceBytes && len(out) > 0 {
			if err := l.putLocked(out); err != nil {
				return n, err
			}
			out = out[:0]
		}
		if len(b) < atOnceBytes {
			out = append(out, b...)
		} else if err := l.putLocked(b); err != nil {
			return n, err
		}
	}
	if cap(out) <= keptMessage {
		l.out = out[:0]
	}
	return n, l.putLocked(out)
}

// atOnceBytes is about how much is written at a time.
const atOnceBytes = 64 << 10

func (l *line) bytesOf(f *frame.Frame) []byte {
	if l.duplex.Deflates {
		return l.server.SocketMessage(f, l.duplex.Request.Format, l.server.CompressionMinBytes())
	}
	return f.Bytes(l.duplex.Request.Format)
}

func (l *line) putLocked(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	err := l.conn.SetWriteDeadline(time.Now().Add(l.server.config().WriteTimeout))
	if err == nil {
		_, err = l.conn.Write(b)
	}
	l.over = l.over || err != nil
	return err
}

// SocketMessage is frame.Frame's, counted if it is compressed.
func (t *Server) SocketMessage(f *frame.Frame, format frame.Format, least int) []byte {
	b := f.SocketMessage(format, least)
	if plain := len(f.Bytes(format.OffSocket())); len(b) < plain {
		t.metrics.Compressed(plain, len(b))
	}
	return b
}

// End tells why the connection ends, and that it does.
func (l *line) End(why *wire.Problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.duplex.Request.Format.AppendEnd(nil, why)
	_, _ = l.writeLocked(l.duplex.Reader.Bye(last, why), nil) // a client that is gone misses nothing
	l.over = true
}

// endWriting tells the client that nothing comes any more, who gets a moment to hear
// it: to close a socket that has something to be read throws away what it was last
// sent.
func (l *line) endWriting() {
	if half, ok := l.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = l.conn.SetReadDeadline(time.Now().Add(farewell))
}

// farewell is how long a client may take to close a connection that has ended.
const farewell = time.Second

// discard reads what the client still sends, until it closes, or for a moment: however
// much it sends.
func (l *line) discard() {
	if l.conn.SetReadDeadline(time.Now().Add(farewell)) == nil {
		_, _ = io.Copy(io.Discard, l.conn)
	}
}

// readBytes is how much is read of a connection at a time: more than any head, so that
// each reading brings a Reader on.
const readBytes = 4 << 10

// read carries out what the client says, until it says no more, or something that
// ends the connection, which is the problem that it returns.
func (l *line) read(ctx context.Context) *wire.Problem {
	select {
	case <-l.greeted: // before the replies to what was read ahead
	case <-ctx.Done():
	}
	buf := make([]byte, max(readBytes, 2*len(l.duplex.Ahead)))
	filled := copy(buf, l.duplex.Ahead)
	for {
		n, closed, err := l.readAll(ctx, buf[:filled])
		if closed || err != nil {
			return asProblem(err)
		}
		filled = copy(buf, buf[n:filled])
		l.noteRest(filled > 0 || l.duplex.Reader.Partial())
		if err := l.await(ctx); err != nil {
			return nil
		}
		m, err := l.conn.Read(buf[filled:])
		if err != nil {
			return l.late(ctx, err)
		}
		filled += m
	}
}

// await bounds how long the next reading may take. There is none when the connection is
// over.
func (l *line) await(ctx context.Context) error {
	if until := l.until(); l.bounded || !until.IsZero() {
		l.bounded = !until.IsZero()
		if err := l.conn.SetReadDeadline(until); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		l.discard()
		return errOver
	}
	return nil
}

// until is when something has to come; zero: whenever the client likes.
func (l *line) until() time.Time {
	if !l.duplex.Answers {
		return l.restBy
	}
	until := time.Now().Add(l.server.Silence())
	if !l.restBy.IsZero() && l.restBy.Before(until) {
		return l.restBy
	}
	return until
}

// noteRest notes by when the rest of a command has to be there, if a part is.
func (l *line) noteRest(part bool) {
	switch {
	case !part:
		l.restBy = time.Time{}
	case l.restBy.IsZero() || l.whole:
		l.restBy = time.Now().Add(l.server.RestTimeout())
	}
	l.whole = false
}

// late returns what a client is told that let a deadline pass.
func (l *line) late(ctx context.Context, err error) *wire.Problem {
	switch {
	case ctx.Err() != nil || !errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case !l.restBy.IsZero() && !time.Now().Before(l.restBy):
		l.server.metrics.Ended(metrics.SlowBody)
		return l.server.TooSlow()
	}
	l.server.metrics.Ended(metrics.Silent)
	return nil
}

// Silence is how long nothing may come from a client that answers heartbeats.
func (t *Server) Silence() time.Duration { return 2*t.config().Heartbeat + 10*time.Second }

// readAll carries out all that is whole in b, and returns how much it took.
func (l *line) readAll(ctx context.Context, b []byte) (taken int, closed bool, err error) {
	for {
		if ctx.Err() != nil {
			return len(b), false, nil // it is over
		}
		n, in, err := l.duplex.Reader.Read(b[taken:])
		if err == nil {
			err = l.serve(ctx, in)
		}
		taken += n
		if err != nil || n == 0 || in.Closed {
			return taken, in.Closed, err
		}
	}
}

// serve does what was read. Nothing else is written before the answer to a change of
// subscriptions: no frame may come of what its client does not know it has.
func (l *line) serve(ctx context.Context, in Incoming) error {
	if in.Command == nil && len(in.Answer) == 0 && !in.Closed {
		return nil // who writes may be waiting for a client that is still saying this
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	answer := in.Answer
	if in.Command != nil {
		l.whole = true
		reply, later, err := l.duplex.Commands.Do(ctx, l.duplex.Session, in.Command)
		if err != nil {
			return err
		}
		if later != nil {
			reply = l.asideLocked(ctx, later)
		}
		if reply != nil {
			answer = l.duplex.Request.Format.AppendReply(answer, reply)
		}
	}
	if len(answer) > 0 {
		_, _ = l.writeLocked(answer, nil) // whoever writes frames hears of it, too
	}
	l.over = l.over || in.Closed
	return nil
}

// asideLocked carries out a command while others write.
func (l *line) asideLocked(ctx context.Context, command Later) *wire.Reply {
	l.mu.Unlock()
	defer l.mu.Lock()
	return command(ctx)
}

func asProblem(err error) *wire.Problem {
	problem, _ := errors.AsType[*wire.Problem](err)
	return problem
}
