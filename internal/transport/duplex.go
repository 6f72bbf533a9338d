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
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Later does the part of a command that may wait, while the session's frames continue. It
// stops waiting when ctx is done. finish does the rest, which may take long. A caller that cannot
// call finish at once, because others write, calls release: finish then waits for its turn anew.
// The caller must call Later and finish once each, and end ctx afterwards.
type Later func(ctx context.Context) (finish Finish, release func())

// Finish returns the reply to a command, as Do does. The caller writes no frame between Finish
// and the reply.
type Finish func() (reply *wire.Reply, err error)

// A Resume completes a command that waits: see Duplex.Do. finish does not take long. Any
// goroutine may call it. It does not block.
type Resume func(finish Finish)

// A Duplex is an open two-way connection: the server sends frames of one session, the
// client sends commands.
type Duplex struct {
	Session      *session.Session
	Who          limit.Who // its client
	Request      Request   // mode Stream
	Conversation *Conversation
	Ahead        []byte // bytes that were already read
	Deflates     bool   // messages of a WebSocket may be deflated

	// Do carries out the command of an Action. The client gets the reply, unless it is nil. The
	// error, a *wire.Problem, ends the connection. Do does not wait. A command that may have
	// to wait for long, or takes long, is not carried out: Do returns it as later. If giveUp is
	// not nil, the command waits without a goroutine of the caller's, and ends in resume, once.
	// giveUp ends its wait, because nobody needs its reply.
	Do func(ctx context.Context, s *session.Session, a Action, resume Resume) (reply *wire.Reply, later Later, giveUp context.CancelFunc, err error)
}

// Serve serves a two-way connection until either side ends it, and closes it. It works for
// every net.Conn, with two goroutines: the caller's reads, another waits for frames and
// writes them. When one returns, the other does too. The lane serves connections in its
// event loops instead.
func (t *Server) Serve(ctx context.Context, conn net.Conn, d Duplex) {
	if !t.serving.add(conn) {
		d.Conversation.Close()
		return
	}
	defer t.serving.remove(conn)
	l := newLink(conn, d.Conversation, d.Ahead)
	l.format, l.deflates = d.Request.Format, d.Deflates
	l.waiting.Init(t.memory, d.Conversation.owner)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var a Answer
	a.Init(t, l, false)
	err := a.Begin(d.Session, d.Request)
	if err == nil { // hello precedes the replies to commands in Ahead
		var state session.State
		if state, err = a.Go(false); state == session.Waiting {
			_, err = a.Wait(ctx)
		}
	}
	if err == nil {
		var writing sync.WaitGroup
		writing.Go(func() {
			err = a.finish(ctx)
			cancel()
			_ = conn.SetReadDeadline(time.Unix(1, 0)) // so that the reader returns
		})
		l.converse(ctx, d)
		cancel()
		writing.Wait()
	}
	l.end(err)
}

// Drain returns a channel that is closed when Serve serves no connection. Each connection
// ends with its session. Drain is called once.
func (t *Server) Drain() <-chan struct{} { return t.serving.drain() }

// Close closes the connections that Serve serves, now and later.
func (t *Server) Close() { t.serving.close() }

// A link drives a Conversation over a connection, from one goroutine. Another goroutine may
// call Send.
type link struct {
	conn     net.Conn      // immutable, like the next three
	talk     *Conversation // owned by the goroutine that reads
	format   frame.Format  // of the frames that Send writes
	deflates bool

	// Owned by the goroutine that reads.
	buf    []byte
	unread []byte // the part of buf that talk has not taken
	closed bool

	mu   sync.Mutex // held while writing, so that frames stay whole; guards the fields below
	last bool       // nothing may be written any more
	out  []byte     // memory in which small frames are put together

	waiting memory.UnreadBytes // the bytes of a write that blocks
}

func newLink(conn net.Conn, talk *Conversation, ahead []byte) *link {
	l := &link{conn: conn, talk: talk, buf: make([]byte, max(readBytes, 2*len(ahead)))}
	l.unread = l.buf[:copy(l.buf, ahead)]
	return l
}

// readBytes is how many bytes are read at a time: more than any head, so that Receive takes
// some after each read.
const readBytes = 4 << 10

// converse carries out commands until the connection or ctx has ended.
func (l *link) converse(ctx context.Context, d Duplex) {
	finished := make(chan Finish, 1)
	resume := func(finish Finish) { finished <- finish }
	for a := l.next(ctx); a.HasCommand(); a = l.next(ctx) {
		l.mu.Lock()
		reply, later, giveUp, err := d.Do(ctx, d.Session, a, resume)
		switch {
		case later != nil:
			l.mu.Unlock()
			finish, release := later(ctx)
			if !l.mu.TryLock() {
				release()
				l.mu.Lock()
			}
			reply, err = finish()
		case giveUp != nil:
			l.mu.Unlock()
			stop := context.AfterFunc(ctx, giveUp)
			finish := <-finished
			stop()
			l.mu.Lock()
			reply, err = finish()
		}
		if later == nil && giveUp == nil || ctx.Err() == nil {
			l.actLocked(l.talk.Reply(reply, err, time.Now()))
		}
		l.mu.Unlock()
	}
}

// next returns the next Action with a command, or the zero Action when the connection or ctx has
// ended.
func (l *link) next(ctx context.Context) Action {
	for ctx.Err() == nil && !l.closed && !l.talk.HasEnded() {
		n, a := l.talk.Receive(l.unread, time.Now())
		l.unread = l.unread[n:]
		if a.HasCommand() {
			return a
		}
		l.act(a)
		if n == 0 {
			l.read(ctx)
		}
	}
	return Action{}
}

// read reads once, or handles a time-out.
func (l *link) read(ctx context.Context) {
	filled := copy(l.buf, l.unread)
	err := l.conn.SetReadDeadline(l.talk.Due())
	if ctx.Err() != nil {
		return // the deadline may have replaced the one that the writer set
	}
	n := 0
	if err == nil {
		n, err = l.conn.Read(l.buf[filled:])
	}
	l.unread = l.buf[:filled+n]
	switch {
	case n > 0 || err == nil || ctx.Err() != nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		l.act(l.talk.Overdue(time.Now()))
	default:
		l.close()
	}
}

// act carries out an Action without a command. It takes the lock only to write. The writer
// may hold the lock for a client that first finishes sending, and only then reads.
func (l *link) act(a Action) {
	switch {
	case a.Close:
		l.close()
	case len(a.Write) > 0:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.actLocked(a)
	}
}

func (l *link) actLocked(a Action) {
	if a.Close || len(a.Write) > 0 && l.putLocked(a.Write, nil) != nil {
		l.close()
	}
	l.last = l.last || a.End
	l.talk.Wrote(time.Now())
}

// Whole implements Sink. Streams never call it.
func (l *link) Whole([]byte, []*frame.Frame) (int, error) {
	panic("BUG: a whole answer on a two-way connection")
}

// Send implements Sink. It writes several small frames at once.
func (l *link) Send(lead []byte, frames []*frame.Frame) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := append(l.out[:0], lead...)
	for _, f := range frames {
		n += len(f.Bytes(l.format.OffSocket()))
		b := f.Bytes(l.format)
		if l.deflates {
			b = l.talk.server.SocketMessage(f, l.format)
		}
		if len(out)+len(b) > atOnceBytes {
			if err := l.putLocked(out, nil); err != nil {
				return n, err
			}
			out = out[:0]
		}
		if len(b) < atOnceBytes {
			out = append(out, b...)
		} else if err := l.putLocked(b, f); err != nil {
			return n, err
		}
	}
	if cap(out) <= keptMessage {
		l.out = out[:0]
	}
	return n, l.putLocked(out, nil)
}

// atOnceBytes is about how many bytes one write has.
const atOnceBytes = 64 << 10

// putLocked writes b. If b belongs to a frame, the frame is pinned meanwhile.
func (l *link) putLocked(b []byte, of *frame.Frame) error {
	switch {
	case l.last:
		return net.ErrClosed
	case len(b) == 0:
		return nil
	case of != nil:
		of.Pin()
		defer of.Unpin()
		l.waiting.Set(0, len(b))
		defer l.waiting.Set(0, 0)
	case len(b) > memory.SmallWrite:
		l.waiting.Set(len(b), 0)
		defer l.waiting.Set(0, 0)
	}
	err := l.conn.SetWriteDeadline(time.Now().Add(l.talk.server.config().WriteTimeout))
	if err == nil {
		_, err = l.conn.Write(b)
	}
	l.last = err != nil
	return err
}

// SocketMessage calls frame.Frame.SocketMessage, and counts the message if it is compressed.
func (t *Server) SocketMessage(f *frame.Frame, format frame.Format) []byte {
	b := f.SocketMessage(format, t.config().CompressionMinBytes)
	if plain := len(f.Bytes(format.OffSocket())); len(b) < plain {
		t.metrics.Compressed(plain, len(b))
	}
	return b
}

// end ends the connection, with a reason unless it has already ended. It waits a moment for
// the client to close.
func (l *link) end(why error) {
	if !l.closed {
		l.act(l.talk.End(why))
	}
	if l.closed {
		return
	}
	defer l.close()
	if half, ok := l.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	if l.conn.SetReadDeadline(l.talk.Due()) == nil {
		_, _ = io.Copy(io.Discard, l.conn) // however much it sends
	}
}

// close closes the connection. Reads and writes in other goroutines then fail.
func (l *link) close() {
	l.closed = true
	l.talk.Close()
	_ = l.conn.Close()
}
