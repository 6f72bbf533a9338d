package pubsub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A loop is the one goroutine that owns a subscription's dealings with the daemon:
// it opens, polls, counts frames, hands items over, and makes changes. A second
// goroutine, of the answer, reads; nothing else runs.
//
// One owner is what makes the counting simple: a frame is counted, its topic's
// position moved, and the item taken on in one step (accept), and a change comes
// between two frames. The alternative, changes made by their callers under a lock,
// must cope with frames of a topic that arrive before the answer that it was
// added.
type loop struct {
	client  *Client
	s       *Subscription
	options subscribeOptions

	stay     stay        // where frames come from at present
	limits   wire.Limits // as the daemon told last
	answer   *answer     // the poll under way
	next     *received   // accepted, and to be handed over before more is taken; nil if none
	changing *change     // to be tried again, or nil
	backoff  backoff
}

// A stay is what frames come from between two openings: a session, or polls
// without one. Its methods are for the loop.
type stay interface {
	// poll asks for what comes after starts. The answer before it has been stopped.
	poll(life context.Context, starts []wire.Start, limits wire.Limits) (*answer, error)

	// counted says that a message or gap has arrived whole.
	counted()

	// canPatch reports whether patch can make the edit; if not, a new stay can.
	canPatch(e edit) bool

	// patch makes the edit while a poll is under way, all of it or nothing, and
	// returns the positions of e.add.
	patch(ctx context.Context, e edit) ([]wire.Position, error)

	// lost reports whether to go on with a new stay after err.
	lost(err error) bool

	// leave ends the stay, as far as that can be done quickly.
	leave(ctx context.Context)
}

// opened is what the daemon says when a stay begins.
type opened struct {
	positions []wire.Position
	limits    *wire.Limits // nil: not said
}

func newLoop(c *Client, s *Subscription, options subscribeOptions) *loop {
	return &loop{client: c, s: s, options: options, limits: defaultLimits, backoff: backoff{max: c.maxBackoff}}
}

// main runs until life ends or something happens that retrying does not mend.
func (l *loop) main(life context.Context) {
	defer close(l.s.done)
	err := l.run(life)
	if life.Err() != nil {
		err = context.Cause(life)
	}
	l.s.end(ErrClosed) // releases life; its cause is not needed any more
	if l.s.err = err; !errors.Is(err, ErrClosed) {
		l.s.err = fmt.Errorf("subscription: %w", err)
	}
	close(l.s.items)
	// Whoever replaced our poll has the session now.
	if !hasCode(err, wire.CodePollReplaced) {
		l.stay.leave(context.WithoutCancel(life))
	}
}

func (l *loop) run(life context.Context) error {
	for {
		err := l.turn(life)
		if life.Err() != nil {
			return context.Cause(life)
		}
		if err != nil {
			err = l.resume(life, err)
		}
		if err != nil {
			return err
		}
	}
}

// turn is one poll, from asking to the last item handed over.
func (l *loop) turn(life context.Context) (err error) {
	if l.answer, err = l.stay.poll(life, l.s.topics.starts(), l.limits); err != nil {
		return err
	}
	defer func() { l.answer.stop() }() // not necessarily the one of now
	if l.changing != nil {
		if err := l.change(life, l.changing); err != nil {
			return err
		}
	}
	return l.relay(life)
}

// relay takes frames and hands items over until the answer has ended. While an item
// waits to be taken no frame is: the answer, and so the daemon, waits too.
func (l *loop) relay(life context.Context) error {
	for {
		in, out, item := l.answer.contents, chan<- received(nil), received{}
		if l.next != nil {
			in, out, item = nil, l.s.items, *l.next
		}
		select {
		case content, open := <-in:
			if !open {
				return l.ended()
			}
			l.accept(content)
		case out <- item:
			l.next = nil
		case ch := <-l.s.changes:
			if err := l.change(life, ch); err != nil {
				return err
			}
		case <-life.Done():
			return context.Cause(life)
		}
	}
}

// accept counts a frame, and takes its item on unless the subscriber has it, or has
// left its topic since.
func (l *loop) accept(content wire.Content) {
	if content.Hello != nil {
		l.learn(content.Hello.Limits)
	}
	if !content.Counts() {
		return
	}
	l.stay.counted()
	item := Item{content.Message, content.Gap}
	mark := l.s.topics.byName[item.Position().Topic]
	if mark == nil || mark.has(item) {
		return
	}
	mark.received = item.Position()
	l.next = &received{item, mark}
	l.answer.useful = true
	l.backoff.reset()
}

func (l *loop) learn(limits *wire.Limits) {
	if limits != nil {
		l.limits = believe(*limits)
	}
}

// ended says what the end of the answer means; nil is to poll on at once.
func (l *loop) ended() error {
	a := l.answer
	if time.Since(a.asked) >= l.backoff.max {
		l.backoff.reset() // what fails so seldom needs no longer waits: a proxy that cuts polls, a stream of days
	}
	switch {
	case a.err != nil:
		return a.err
	case l.options.mode == Stream:
		return errCut
	case !a.useful && time.Since(a.asked) < min(time.Second, l.limits.PollTimeout()/2):
		// Something between answers in the daemon's place; do not ask it in a rush.
		return errEarly
	}
	l.backoff.reset()
	return nil
}

// maxMalformed is how many answers in a row may make no sense before the
// subscription ends: waiting does not mend another protocol.
const maxMalformed = 5

// resume waits and makes ready for the next poll, in a new stay if the present one
// is lost. It returns err if neither would help.
func (l *loop) resume(life context.Context, err error) error {
	lost := l.stay.lost(err)
	if !lost && !isTransient(err) {
		return err
	}
	if err := l.pause(life, err); err != nil || !lost {
		return err
	}
	old := l.stay
	if err := l.open(life, life); err != nil {
		return err
	}
	if !hasCode(err, wire.CodeSessionEnded, wire.CodeSessionUnknown, wire.CodeDraining) {
		old.leave(life)
	}
	return nil
}

// pause waits before another attempt, longer after each failure in a row. A session
// that is lost while the daemon is well is reopened without a wait at first.
func (l *loop) pause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return whyGivenUp(ctx, err)
	}
	if errors.Is(err, errMalformed) && l.backoff.failures+1 >= maxMalformed {
		return err
	}
	fresh := l.backoff.failures == 0
	wait := l.backoff.next(retryAfter(err))
	if fresh && !isTransient(err) {
		wait = retryAfter(err)
	}
	if l.options.onRetry != nil {
		l.options.onRetry(err, wait)
	}
	if sleep(ctx, wait) != nil {
		return whyGivenUp(ctx, err)
	}
	return nil
}

// whyGivenUp joins why ctx ended with the last error before, unless it is the same.
func whyGivenUp(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(err, cause) {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// open begins a new stay where the topics are, and tries until ctx ends.
func (l *loop) open(life, ctx context.Context) error {
	for {
		stay, o, err := l.openOnce(life, ctx, l.s.topics.starts())
		if err == nil {
			l.stay = stay
			l.learn(o.limits)
			l.s.settle(o.positions)
			return nil
		}
		if !isTransient(err) {
			return err
		}
		if err := l.pause(ctx, err); err != nil {
			return err
		}
	}
}

// openOnce makes one attempt, bounded by ctx and by requestTimeout. What it opened
// lives as long as life.
func (l *loop) openOnce(life, ctx context.Context, starts []wire.Start) (stay, opened, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errSilent)
	defer cancel()
	if l.options.stateless {
		return openStateless(life, ctx, l.client, l.options.mode, starts, l.limits)
	}
	return openSession(ctx, l.client, l.options.mode, starts)
}

// change makes ch and answers it. An error is dealt with as one of the poll; ch is
// tried again then.
func (l *loop) change(life context.Context, ch *change) error {
	l.changing = nil
	if ch.ctx.Err() != nil {
		ch.answer <- changed{err: context.Cause(ch.ctx)}
		return nil
	}
	err := l.make(life, ch)
	switch {
	case err == nil:
		ch.answer <- changed{positions: l.s.positionsOf(ch.add)}
	case errors.Is(err, errNoTopics), !isTransient(err) && !l.stay.lost(err):
		ch.answer <- changed{err: err}
	default:
		l.changing = ch
		return err
	}
	return nil
}

func (l *loop) make(life context.Context, ch *change) error {
	ctx, cancel := context.WithTimeoutCause(ch.ctx, requestTimeout, errSilent)
	defer cancel()
	defer context.AfterFunc(life, cancel)()

	e := l.s.topics.edit(ch.add, ch.remove)
	switch {
	case e.empty():
		return nil
	case l.options.stateless && len(e.next.marks) == 0:
		return errNoTopics
	case l.stay.canPatch(e):
		return l.patch(ctx, e)
	}
	return l.replace(life, ctx, e)
}

func (l *loop) patch(ctx context.Context, e edit) error {
	positions, err := l.stay.patch(ctx, e)
	if err == nil {
		l.s.adopt(e, positions)
	}
	return err
}

// replace opens a new stay with the edited topics before it gives the old one up,
// so that a refusal leaves all as it was. What the old poll read and the loop did
// not take comes again in the new one.
func (l *loop) replace(life, ctx context.Context, e edit) error {
	stay, o, err := l.openOnce(life, ctx, e.next.starts())
	if err != nil {
		return err
	}
	old := l.stay
	l.answer.stop()
	l.stay = stay
	l.learn(o.limits)
	l.s.adopt(e, o.positions)
	old.leave(life)
	answer, err := l.stay.poll(life, e.next.starts(), l.limits)
	if err != nil {
		return err
	}
	l.answer = answer
	return nil
}
