package pubsub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A socket is a stay that is one connection: frames come over it, and changes go the
// other way. On the daemon it is a session that lives no longer, so what is lost with it
// is asked for by position over the next. It is the loop's alone.
type socket struct {
	link   link
	answer *answer
	polled bool   // the loop has the answer
	ref    uint64 // of the last command
	had    hadTopics
}

// A link is the connection of a socket.
type link interface {
	io.Reader // of what comes as it comes; for one goroutine

	// decoder returns what reads the frames of r, which reads the link.
	decoder(r io.Reader) decoder

	// send writes a command. If ctx ends first, so does the link. It may be called
	// while others read.
	send(ctx context.Context, c wire.Command) error

	// tellPresence says that the client is there, though it reads nothing now.
	tellPresence()

	// Close ends the connection, and what reads or writes. It may be called at any time,
	// and again.
	Close()
}

// openSocket makes a stay of what dial connects, which tells whether it has asked for
// starts. The stay lives as long as life; its opening is bounded by ctx.
func openSocket(life, ctx context.Context, c clock, dial func() (link, bool, error), starts []wire.Start, limits wire.Limits) (*socket, opened, error) {
	link, asked, err := dial()
	if err != nil {
		return nil, opened{}, err
	}
	s := &socket{link: link, answer: listen(life, c, link, limits), had: hadTopics{}}
	o, err := s.begin(ctx, starts, asked)
	if err == nil {
		err = checkPositions(s.answer.status, starts, o.positions)
	}
	if err != nil {
		s.leave(life)
		return nil, opened{}, err
	}
	s.had.remember(starts)
	return s, o, nil
}

// begin reads where the topics begin: in the hello, or the reply if they are asked
// for only now.
func (s *socket) begin(ctx context.Context, starts []wire.Start, asked bool) (opened, error) {
	hello, err := awaitHello(ctx, s.answer)
	if err != nil {
		return opened{}, err
	}
	o := opened{hello.Positions, hello.Limits, hello.ExpiresMS}
	if !asked {
		reply, err := s.command(ctx, wire.Command{Subscribe: starts}, func(wire.Content) error { return nil })
		if err != nil {
			return opened{}, err
		}
		o.positions = reply.Positions
	}
	return o, nil
}

// listen reads what comes over the link until it ends, or life does, and closes it.
func listen(life context.Context, c clock, l link, limits wire.Limits) *answer {
	ctx, cancel := context.WithCancelCause(life)
	a := &answer{contents: make(chan wire.Content), cancel: cancel, asked: c.now(), mode: Stream, presence: newPresence(l.tellPresence)}
	watchdog := c.alarm(func() { cancel(errSilent) })
	watchdog.Reset(requestTimeout)
	go func() {
		defer close(a.contents)
		defer cancel(nil)
		defer watchdog.Stop()
		defer l.Close()
		defer context.AfterFunc(ctx, l.Close)()
		body := &watchedReader{l, watchdog, patienceWith(limits, Stream).body}
		if a.err = a.relay(ctx, l.decoder(body), body); a.err == nil {
			a.err = errCut
		}
		if ctx.Err() != nil {
			a.err = context.Cause(ctx) // whatever came of closing the link
		}
	}()
	return a
}

// poll returns the one answer that there is.
func (s *socket) poll(context.Context, []wire.Start, wire.Limits) (*answer, error) {
	if s.polled {
		return nil, errCut
	}
	s.polled = true
	return s.answer, nil
}

func (s *socket) counted() {}

// canPatch is true of as little as with a session, though replies come in order: that a reply
// comes after all frames of what was removed is not promised.
func (s *socket) canPatch(e edit) bool { return s.had.permit(e) }

func (s *socket) patch(ctx context.Context, e edit, take func(wire.Content) error) ([]wire.Position, error) {
	reply, err := s.command(ctx, wire.Command{Subscribe: e.add, Unsubscribe: e.remove}, take)
	if err == nil {
		err = checkPositions(s.answer.status, e.add, reply.Positions)
	}
	if err != nil {
		return nil, unlessRefused(err)
	}
	s.had.remember(e.add)
	return reply.Positions, nil
}

func (s *socket) authenticate(ctx context.Context, token string, take func(wire.Content) error) (time.Duration, error) {
	reply, err := s.command(ctx, wire.Command{Auth: token}, take)
	if err != nil {
		return 0, unlessRefused(err)
	}
	return time.Duration(reply.ExpiresMS) * time.Millisecond, nil
}

// unlessRefused returns err, of a command, as uncertain unless the daemon refused it.
func unlessRefused(err error) error {
	if problem := (*wire.Problem)(nil); errors.As(err, &problem) {
		return err
	}
	return &uncertainError{err}
}

// command sends c and waits for its reply, which is not a refusal. Frames that come before
// it go to take.
func (s *socket) command(ctx context.Context, c wire.Command, take func(wire.Content) error) (*wire.Reply, error) {
	s.ref++
	ref := s.ref
	c.Ref = &ref
	if err := s.link.send(ctx, c); err != nil {
		return nil, err
	}
	for {
		select {
		case content, open := <-s.answer.contents:
			if !open {
				return nil, fmt.Errorf("before the reply to a command: %w", s.answer.err)
			}
			if reply := content.Reply; reply != nil && reply.Ref != nil && *reply.Ref == ref {
				return unlessProblem(reply)
			}
			if err := take(content); err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func unlessProblem(r *wire.Reply) (*wire.Reply, error) {
	if r.Problem != nil {
		return nil, r.Problem
	}
	return r, nil
}

// A connection that is no more is not gone on with. After its token has expired, the next
// one has a new token.
func (s *socket) lost(err error) bool { return isUncertain(err) || hasCode(err, lostCodes...) }
func (s *socket) cut(err error) bool  { return s.lost(err) || isTransient(err) || isUnauthorized(err) }

func (s *socket) leave(context.Context) { s.answer.stop() }
