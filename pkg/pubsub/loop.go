package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
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

	ladder  []Transport // those that may be used, the next opening's first
	settled bool        // the first of them has worked
	stay    stay        // where frames come from at present
	limits  wire.Limits // as the daemon told last
	answer  *answer     // the poll under way
	crowd   int         // of more topics than this, some may be forgotten; see crowded
	waiting []received  // accepted, and to be handed over before more is taken
	backoff backoff

	early  int // answers in a row that came at once and brought nothing new; see hurried
	rushes int // how often those were too many

	renewal    *alarm        // set for when to renew the token
	renewalDue chan struct{} // has a value once that has rung; never closed
	renewed    chan renewed  // has what the source of tokens gave; never closed
	fetching   sync.WaitGroup
	granted    instant       // when the token's time was told
	lasts      time.Duration // from then on
	refused    bool          // the daemon refused a token, and has sent nothing since
	barred     bool          // a new token permits none of the topics

	changing *change         // to be tried again, or nil
	again    <-chan struct{} // when to try it, if no new stay makes it before
	retries  backoff         // of changing
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
	// returns the positions of e.add. What of the poll it must read meanwhile it gives
	// to take; if that fails, so does patch.
	patch(ctx context.Context, e edit, take func(wire.Content) error) ([]wire.Position, error)

	// authenticate gives the stay a new token, and returns how long that lasts; 0: not
	// told. What it must read meanwhile it gives to take.
	authenticate(ctx context.Context, token string, take func(wire.Content) error) (time.Duration, error)

	// lost reports whether err ends the stay for us, so that a new one is needed.
	lost(err error) bool

	// cut reports whether err, of a poll, ends the stay: it is lost, or cannot be
	// gone on with after such an answer.
	cut(err error) bool

	// leave ends the stay, as far as that can be done quickly.
	leave(ctx context.Context)
}

// opened is what the daemon says when a stay begins.
type opened struct {
	positions []wire.Position
	limits    *wire.Limits // nil: not said
	expires   int64        // milliseconds until the token expires; 0: it does not
}

func newLoop(c *Client, s *Subscription, options subscribeOptions) *loop {
	l := &loop{
		client: c, s: s, options: options, ladder: options.ladder(), limits: untoldLimits,
		backoff: backoff{max: c.maxBackoff}, retries: backoff{max: c.maxBackoff},
		renewalDue: make(chan struct{}, 1), renewed: make(chan renewed, 1),
	}
	l.renewal = c.clock.alarm(func() {
		select {
		case l.renewalDue <- struct{}{}:
		default:
		}
	})
	return l
}

// errNoRight ends a subscription when its last topic has ended with a gap, forbidden.
var errNoRight = &wire.Problem{
	Title: "Forbidden", Status: http.StatusForbidden, Code: wire.CodeForbidden, Detail: "the new token permits none of the topics",
}

// errGoexit is what ends a subscription whose callback has ended the loop's goroutine.
var errGoexit = errors.New("a callback called runtime.Goexit, as FailNow of a test does")

// main runs until life ends or something happens that retrying does not mend.
func (l *loop) main(life context.Context) {
	err := errGoexit // unless run returns
	defer func() {
		l.s.end(ErrClosed) // releases life; its cause is not needed any more
		l.renewal.Stop()
		l.fetching.Wait()
		if l.s.err = err; !errors.Is(err, ErrClosed) {
			l.s.err = fmt.Errorf("subscription: %w", err)
		}
		close(l.s.items)
		l.stay.leave(context.WithoutCancel(life))
		close(l.s.done)
	}()
	if err = l.run(life); life.Err() != nil {
		err = context.Cause(life)
	}
}

func (l *loop) run(life context.Context) error {
	for {
		err := l.turn(life)
		if life.Err() != nil {
			return context.Cause(life)
		}
		switch {
		case err != nil:
			err = l.resume(life, err)
		case l.crowded():
			err = l.renew(life)
		}
		if hasCode(err, wire.CodeForbidden) {
			err = l.shed(life, err)
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
	return l.relay(life)
}

// relay takes frames and hands items over until the answer has ended. While an item
// waits to be taken no frame is: the answer, and so the daemon, waits too. While a
// change waits to be tried again no other is taken.
func (l *loop) relay(life context.Context) error {
	for {
		if len(l.waiting) == 0 && l.barred {
			return errNoRight
		}
		in, out, item := l.answer.contents, chan<- received(nil), received{}
		if len(l.waiting) > 0 {
			in, out, item = nil, l.s.items, l.waiting[0]
		}
		changes, abandoned := l.s.changes, (<-chan struct{})(nil)
		if l.changing != nil {
			changes, abandoned = nil, l.changing.ctx.Done()
		}
		select {
		case content, open := <-in:
			if !open {
				return l.ended()
			}
			l.accept(content)
			if l.crowded() {
				return nil
			}
		case out <- item:
			l.waiting = l.waiting[1:]
		case ch := <-changes:
			l.retries.reset()
			if err := l.change(life, ch); err != nil {
				return err
			}
		case <-l.again:
			if err := l.change(life, l.changing); err != nil {
				return err
			}
		case <-l.renewalDue:
			l.fetchToken(life)
		case r := <-l.renewed:
			if err := l.renewToken(life, r); err != nil {
				return err
			}
		case <-abandoned:
			l.answerChange(nil, context.Cause(l.changing.ctx))
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
		l.refused = false
	}
	if content.Moved != nil {
		l.move(content.Moved.Positions)
	}
	if !content.Counts() {
		return
	}
	l.stay.counted()
	item := Item{content.Message, content.Gap}
	mark := l.s.markOf(item.Position().Topic)
	if mark == nil {
		return
	}
	// The subscription has ended, which is news even if the topic has no more messages.
	forbidden := item.Gap != nil && item.Gap.Reason == wire.GapForbidden
	if !forbidden && mark.has(item) {
		l.answer.repeated = true
		return
	}
	if forbidden && mark.named { // else the pattern stays, and the position with it: it may be permitted again
		l.s.drop(mark)
		l.barred = len(l.s.topics.marks) == 0
	}
	// Two daemons that take turns behind one address renumber the topic with every
	// answer: all of it is new, and none of it is progress.
	met := mark.received.Epoch == ""
	if !met && item.Position().Epoch != mark.received.Epoch || item.Gap != nil && item.Gap.Reason == wire.GapRestarted {
		l.answer.renumbered = true
	}
	l.waiting = append(l.waiting, received{item, mark, item.Position()})
	mark.received = item.Position()
	if item.Gap != nil && item.Gap.IsLeftOut() && !mark.named && !wire.IsPattern(item.Gap.Topic) {
		l.s.forget(mark) // there may be any number of such topics; if it fits later, it begins with its first message
	}
	l.answer.useful = true
	if !l.answer.renumbered {
		l.progress()
	}
}

// move moves positions past messages of the caller that the daemon has left out. They go the way of
// the items, so that those before them are returned first.
func (l *loop) move(positions []wire.Position) {
	for _, at := range positions {
		mark := l.s.markOf(at.Topic)
		if mark == nil || mark.received.Epoch != "" && (mark.received.Epoch != at.Epoch || mark.received.Offset >= at.Offset) {
			continue
		}
		mark.received = at
		l.waiting = append(l.waiting, received{mark: mark, at: at})
		l.answer.useful = true
	}
}

// progress ends a row of failures.
func (l *loop) progress() {
	l.backoff.reset()
	l.early, l.rushes = 0, 0
	l.refused = false
}

func (l *loop) learn(limits *wire.Limits) {
	if limits != nil {
		l.limits = believe(*limits)
		l.client.idempotencyMS.Store(limits.IdempotencyMS)
	}
}

// ended says what the end of the answer means; nil is to poll on at once.
func (l *loop) ended() error {
	a := l.answer
	lasted := l.client.clock.since(a.asked)
	if lasted >= l.backoff.max {
		l.backoff.reset() // what fails so seldom needs no longer waits: a proxy that cuts polls, a stream of days
	}
	switch {
	case a.err != nil:
		return a.err
	case a.mode == Stream:
		return errCut
	case a.repeated && l.stay.lost(errRepeated):
		return errRepeated
	case lasted >= min(time.Second, l.limits.PollTimeout()/2):
	case !a.useful:
		return l.hurried()
	case a.renumbered:
		return errRenumbered
	}
	l.progress()
	return nil
}

// maxEarly is how many answers in a row may come at once and bring nothing new. Something
// between answers in the daemon's place, or the session is not what we think.
const maxEarly = 5

// hurried returns an error when there were too many early answers in a row. The first time a new
// session may help, and then waiting; see resume and waitAfter.
func (l *loop) hurried() error {
	if l.early++; l.early < maxEarly {
		return nil
	}
	if l.rushes++; l.rushes <= 2 {
		l.early = 0 // after the third time every answer is one too many
	}
	return errEarly
}

// resume waits and makes ready for the next poll, in a new stay if the present one
// is lost. It returns err if neither would help.
func (l *loop) resume(life context.Context, err error) error {
	if isUnauthorized(err) && !l.stay.cut(err) {
		if err = l.reauthenticate(life, err); err == nil {
			return nil
		}
	}
	lost := l.stay.cut(err) || l.isFirstRush(err)
	if !lost && !mayPass(err) {
		return err
	}
	if err := l.pause(life, err); err != nil || !lost {
		return err
	}
	old := l.stay
	if err := l.open(life, life); err != nil {
		return err
	}
	// Whoever replaced our poll has the session now.
	if !hasCode(err, wire.CodeSessionEnded, wire.CodeSessionUnknown, wire.CodeDraining, wire.CodePollReplaced) {
		old.leave(life)
	}
	return nil
}

func (l *loop) isFirstRush(err error) bool { return errors.Is(err, errEarly) && l.rushes == 1 }

// crowded reports whether so many topics were met by patterns that it is time to
// hear which of them the daemon has forgotten: it refuses too many, and we should
// not remember them for ever.
func (l *loop) crowded() bool {
	return len(l.s.topics.patterns) > 0 && len(l.s.topics.marks) > max(l.crowd, minCrowd)
}

// minCrowd is half of the topics that a daemon lets a session have by default.
const minCrowd = 500

// renew opens a new stay, from which the forgotten topics are known, in place of one
// that is well.
func (l *loop) renew(life context.Context) error {
	old := l.stay
	if err := l.open(life, life); err != nil {
		return err
	}
	l.crowd = 2 * len(l.s.topics.marks)
	old.leave(life)
	return nil
}

// pause waits before another attempt.
func (l *loop) pause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return whyGivenUp(ctx, err)
	}
	wait := l.waitAfter(err)
	l.notify(err, wait)
	if l.client.clock.sleep(ctx, wait) != nil {
		return whyGivenUp(ctx, err)
	}
	return nil
}

// waitAfter returns how long to wait after err: longer after each failure in a row. A session
// that is lost while the daemon is well is reopened without a wait at first. What answers in
// the daemon's place has to be mended by people, so it is asked less often.
func (l *loop) waitAfter(err error) time.Duration {
	fresh, early := l.backoff.failures == 0, errors.Is(err, errEarly)
	patient := l.backoff
	if isForeign(err) || early || errors.Is(err, errRepeated) {
		patient.max *= foreignFactor
	}
	if early && l.rushes > 2 {
		patient.failures = math.MaxInt // the longest wait
	}
	l.backoff.failures++
	if fresh && !mayPass(err) || l.isFirstRush(err) {
		return retryAfter(err)
	}
	return patient.next(retryAfter(err))
}

func (l *loop) notify(err error, wait time.Duration) {
	if l.options.onRetry != nil {
		l.options.onRetry(err, wait)
	}
}

// whyGivenUp joins why ctx ended with the last error before, unless it is the same.
func whyGivenUp(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(err, cause) {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// open begins a new stay where the topics are, and tries until ctx ends. A change
// that waits is made with it; if it is refused the stay is opened without.
func (l *loop) open(life, ctx context.Context) error {
	for {
		e := l.waitingEdit()
		stay, o, err := l.openOnce(life, ctx, e.next.starts())
		if err == nil {
			l.begin(stay, o)
			l.s.adopt(e, o.positions)
			if ch := l.changing; ch != nil {
				l.answerChange(l.s.positionsOf(ch.add), nil)
			}
			return nil
		}
		if l.changing != nil && isRefusal(err) {
			l.answerChange(nil, err)
			continue
		}
		if !mayPass(err) {
			return err
		}
		if err := l.pause(ctx, err); err != nil {
			return err
		}
	}
}

// begin takes a new stay over.
func (l *loop) begin(stay stay, o opened) {
	l.stay = stay
	l.learn(o.limits)
	l.expiresIn(time.Duration(o.expires) * time.Millisecond)
}

// openBy makes one attempt by a transport, bounded by ctx. What it opened lives as
// long as life. With proof something must have come over it before.
func (l *loop) openBy(life, ctx context.Context, t Transport, starts []wire.Start, proof bool) (stay, opened, error) {
	o := l.options.by(t)
	switch {
	case t == TCP:
		return l.openTCP(life, ctx, o, starts)
	case t == WebSocket:
		dial := func() (link, bool, error) { return l.client.dialWebSocket(ctx, o, starts) }
		return openSocket(life, ctx, l.client.clock, dial, starts, l.limits)
	case o.stateless:
		return openStateless(life, ctx, l.client, o, starts, l.limits)
	default:
		return openSession(life, ctx, l.client, o, starts, proof)
	}
}
