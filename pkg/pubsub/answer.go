package pubsub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The ways in which an answer ends that no problem explains.
var (
	errSilent = errors.New("the daemon has sent nothing for too long")
	errCut    = errors.New("the stream was cut off")
	errEarly  = errors.New("polls return at once with nothing new: does a proxy in between answer for the server?")

	// A session sends each frame once, unless it was not acknowledged. Whoever has counted another
	// one would acknowledge frames that never came.
	errRepeated = errors.New("a poll brought frames that had come before: does a proxy in between repeat answers?")

	errRenumbered = errors.New("the answer to a poll is from another epoch")
)

// patience is how long an answer may be quiet before its connection is taken for
// dead: before its first byte, and between any two.
type patience struct {
	head time.Duration
	body time.Duration
}

// slack is added to what the daemon said it would take: for the network, and for
// a daemon or a machine under load.
const slack = 10 * time.Second

// patienceWith returns how long to wait for answers under the daemon's limits.
//
// A stream begins at once, and may lose one heartbeat. A poll is held for the poll
// timeout; once begun its answer only pauses in mode multiple.
func patienceWith(l wire.Limits, mode Mode) patience {
	if mode == Stream {
		quiet := 2*l.Heartbeat() + slack
		return patience{head: quiet, body: quiet}
	}
	pause := time.Duration(l.MaxOutputDelayMS) * time.Millisecond
	return patience{head: l.PollTimeout() + slack, body: pause + slack}
}

// defaultLimits are the daemon's defaults, for when it has not said others.
var defaultLimits = wire.Limits{PollTimeoutMS: 25_000, HeartbeatMS: 15_000, MaxOutputDelayMS: 200}

// untoldLimits hold until the daemon has said its own. A poll with all positions is
// not told them, so its head is awaited for two minutes: a daemon that holds polls
// for longer than the default must not look dead each time.
var untoldLimits = wire.Limits{
	PollTimeoutMS:    (2*time.Minute - slack).Milliseconds(),
	HeartbeatMS:      defaultLimits.HeartbeatMS,
	MaxOutputDelayMS: defaultLimits.MaxOutputDelayMS,
}

// maxLimitMS bounds a timeout that is believed: a day.
const maxLimitMS = 24 * 60 * 60 * 1000

// believe returns l with every timeout that makes no sense set to its default.
func believe(l wire.Limits) wire.Limits {
	for _, f := range []struct{ value, fallback *int64 }{
		{&l.PollTimeoutMS, &defaultLimits.PollTimeoutMS},
		{&l.HeartbeatMS, &defaultLimits.HeartbeatMS},
		{&l.MaxOutputDelayMS, &defaultLimits.MaxOutputDelayMS},
	} {
		if *f.value <= 0 || *f.value > maxLimitMS {
			*f.value = *f.fallback
		}
	}
	return l
}

// An answer is one poll: a goroutine sends the request and reads the frames as
// they come, one ahead at most, for whoever receives from contents. The receiver
// owns it, and must stop it, which waits for the goroutine.
type answer struct {
	contents chan wire.Content // closed by the reader at the end
	err      error             // why it ended, nil at its proper end; written before contents is closed
	cancel   context.CancelCauseFunc
	asked    instant
	mode     Mode
	status   int       // of HTTP, 0 without; written before anything is sent to contents
	presence *presence // nil: nobody has to be told that we are there

	// Of the loop.
	useful     bool // it brought something new
	repeated   bool // it brought something that had come before
	renumbered bool // it led a topic to another epoch, or back
}

// A sender is Client.send or Client.sendOnce.
type sender func(req *http.Request, want int) (*http.Response, error)

// ask sends req, whose answer comes in mode and as e, for as long as life lasts.
func (c *Client) ask(life context.Context, send sender, req *http.Request, mode Mode, e encoding, limits wire.Limits) *answer {
	ctx, cancel := context.WithCancelCause(life)
	a := &answer{contents: make(chan wire.Content), cancel: cancel, asked: c.clock.now(), mode: mode}
	req.Header.Set("Accept", e.contentType)
	go func() {
		defer close(a.contents)
		defer cancel(nil)
		a.err = a.read(c.clock, send, req.WithContext(ctx), e, patienceWith(limits, mode))
	}()
	return a
}

// stop gives the answer up and waits for its goroutine. What was read and not yet
// received is as if it had never arrived.
func (a *answer) stop() {
	a.cancel(context.Canceled)
	for range a.contents {
	}
}

func (a *answer) read(c clock, send sender, req *http.Request, e encoding, p patience) error {
	watchdog := c.alarm(func() { a.cancel(errSilent) })
	watchdog.Reset(p.head)
	defer watchdog.Stop()
	resp, err := send(req, http.StatusOK)
	watchdog.Stop()
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	contentType := resp.Header.Get("Content-Type")
	if mediaType, _, _ := mime.ParseMediaType(contentType); mediaType != e.contentType {
		return unexpected(a.status, "with the type %s", wire.Quote(contentType))
	}
	body := &watchedReader{resp.Body, watchdog, p.body}
	return a.relay(req.Context(), e.decoder(body), body)
}

// relay sends frame after frame to the receiver. They are read from body.
func (a *answer) relay(ctx context.Context, frames decoder, body *watchedReader) error {
	for owed := 0; ; {
		content, err := frames.Next()
		switch {
		case errors.Is(err, io.EOF) && owed > 0:
			return errIncomplete
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return whyUnreadable(ctx, a.status, err)
		case content.End != nil:
			return content.End
		case content.Counts():
			owed--
		case content.Hello != nil:
			owed = a.learn(content.Hello, body)
		}
		if err := a.handOver(ctx, content); err != nil {
			return err
		}
	}
}

// learn returns how many messages and gaps follow hello, if it says so.
func (a *answer) learn(hello *wire.Hello, body *watchedReader) (owed int) {
	if hello.Limits != nil {
		body.limit = patienceWith(believe(*hello.Limits), a.mode).body
	}
	if hello.Frames != nil {
		owed = *hello.Frames
	}
	return owed
}

// handOver waits for the receiver. What the daemon asks meanwhile is not read.
func (a *answer) handOver(ctx context.Context, content wire.Content) error {
	for {
		select {
		case a.contents <- content:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.presence.due():
			a.presence.tell()
		}
	}
}

// A presence tells the daemon that the client is there while it does not read. It is
// for one goroutine.
type presence struct {
	tell  func()
	timer *time.Timer
}

// presenceInterval is shorter than any time after which a daemon gives up a client
// that says nothing: two heartbeats and 10 s.
const presenceInterval = 8 * time.Second

func newPresence(tell func()) *presence {
	return &presence{tell: tell, timer: time.NewTimer(presenceInterval)}
}

// due returns what is ready once it is time to tell.
func (p *presence) due() <-chan time.Time {
	if p == nil {
		return nil
	}
	p.timer.Reset(presenceInterval)
	return p.timer.C
}

// whyUnreadable tells a connection that broke, which is passing, from a frame that
// came whole and says nothing, which may be for ever. The answer has the status.
func whyUnreadable(ctx context.Context, status int, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if connectionError := (*readError)(nil); errors.As(err, &connectionError) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the answer was cut off: %w", err)
	}
	return unexpected(status, "with what is no frame (%v)", err)
}

// A watchedReader lets the watchdog run only while it waits for bytes, so that a
// slow receiver of frames is not taken for a dead daemon.
type watchedReader struct {
	body     io.Reader
	watchdog *alarm
	limit    time.Duration // what a hello says of it holds from then on
}

// readError is an error of the connection, not of what came over it.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

func (r *watchedReader) Read(p []byte) (int, error) {
	r.watchdog.Reset(r.limit)
	n, err := r.body.Read(p)
	r.watchdog.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = &readError{err}
	}
	return n, err
}
