package pubsub

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// change makes ch and answers it, unless the outcome is open: then ch waits to be
// tried again, while the poll goes on. An error means that the stay is lost, and is
// dealt with as one of the poll; a change that waits is then made with the new stay.
func (l *loop) change(life context.Context, ch *change) error {
	l.changing = ch
	if ch.ctx.Err() != nil {
		l.answerChange(nil, context.Cause(ch.ctx))
		return nil
	}
	err := l.make(life, ch)
	switch {
	case err == nil:
		l.answerChange(l.s.positionsOf(ch.add), nil)
		return nil
	case isRefusal(err):
		l.answerChange(nil, err)
	default:
		wait := l.retries.next(retryAfter(err))
		l.again, _ = l.client.clock.passed(wait)
		if !l.stay.lost(err) {
			l.notify(err, wait)
		}
	}
	if l.stay.lost(err) {
		return err
	}
	return nil
}

// answerChange answers the change that waits, if one does.
func (l *loop) answerChange(positions []wire.Position, err error) {
	if ch := l.changing; ch != nil {
		l.changing, l.again = nil, nil
		ch.answer <- changed{positions, err}
	}
}

// waitingEdit returns what the change that waits comes to; nothing if none does, or
// nobody waits for it.
func (l *loop) waitingEdit() edit {
	if l.changing != nil && l.changing.ctx.Err() != nil {
		l.answerChange(nil, context.Cause(l.changing.ctx))
	}
	if l.changing == nil {
		return l.s.topics.edit(nil, nil)
	}
	return l.s.topics.edit(l.changing.add, l.changing.remove)
}

// isRefusal reports whether a change that failed with err was not made and is not to
// be tried again: whoever asked for it decides. "Later" is a refusal too, when it is
// the daemon's word: for as long as it lasts the subscription goes on as it was.
func isRefusal(err error) bool {
	p := (*wire.Problem)(nil)
	if errors.As(err, &p) && (p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable) {
		return p.Code != wire.CodeDraining
	}
	return errors.Is(err, errNoTopics) || !isTransient(err) && !hasCode(err, lostCodes...)
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
	case !l.stay.canPatch(e):
		return l.replace(life, ctx, e)
	}
	err := l.patch(ctx, e)
	if !isUncertain(err) {
		return err
	}
	if err := l.replace(life, ctx, e); err != nil {
		return &uncertainError{err} // refused or not, the old session is not what it was
	}
	return nil
}

func (l *loop) patch(ctx context.Context, e edit) error {
	positions, err := l.stay.patch(ctx, e, l.keep())
	if err == nil {
		l.s.adopt(e, positions)
	}
	return err
}

// maxWaitingBytes bounds what waits to be handed over: what comes in a round trip.
const maxWaitingBytes = 8 << 20

var errBacklog = errors.New("too many frames arrived before the reply to a change")

// keep returns what accepts the frames that a change must read on its way. Nothing
// else takes frames while items wait, so it is changes alone that make them many.
func (l *loop) keep() func(wire.Content) error {
	left := maxWaitingBytes
	for _, r := range l.waiting {
		left -= r.item.size()
	}
	return func(content wire.Content) error {
		if content.Counts() {
			left -= Item{content.Message, content.Gap}.size()
		}
		if content.Moved != nil {
			left -= gapSize * len(content.Moved.Positions)
		}
		if left < 0 {
			return errBacklog
		}
		l.accept(content)
		return nil
	}
}

// replace opens a new stay with the edited topics before it gives the old one up,
// so that a refusal leaves all as it was. What the old poll read and the loop did
// not take comes again in the new one.
func (l *loop) replace(life, ctx context.Context, e edit) error {
	if err := l.vet(life, ctx, e); err != nil {
		return err
	}
	stay, o, err := l.openOnce(life, ctx, e.next.starts())
	if err != nil {
		return err
	}
	old := l.stay
	l.answer.stop()
	l.begin(stay, o)
	l.s.adopt(e, o.positions)
	old.leave(life)
	answer, err := l.stay.poll(life, e.next.starts(), l.limits)
	if err != nil {
		return err
	}
	l.answer = answer
	return nil
}

// vet has a stateless subscription's new topics refused, if they are to be, before
// they are polled for: that poll's refusal would end the subscription, and may come
// late.
func (l *loop) vet(life, ctx context.Context, e edit) error {
	starts := e.next.starts()
	if _, all := positionsOf(starts); !all || len(e.add) == 0 || !l.isPolledWithoutSession() {
		return nil
	}
	return l.try(life, ctx, starts)
}

func (l *loop) isPolledWithoutSession() bool { return l.options.stateless && l.ladder[0] == LongPoll }

// try asks whether the daemon permits starts. A poll without a session is answered at once if it
// names no position.
func (l *loop) try(life, ctx context.Context, starts []wire.Start) error {
	var s stay
	var err error
	if l.isPolledWithoutSession() {
		now := make([]wire.Start, len(starts))
		for i, start := range starts {
			now[i] = FromNow(start.Topic)
		}
		options := l.options.by(LongPoll)
		options.mode = Single
		s, _, err = openStateless(life, ctx, l.client, options, now, l.limits)
	} else {
		s, _, err = l.openOnce(life, ctx, starts)
	}
	if err == nil {
		s.leave(life)
	}
	return err
}

// shed gives up the topics that the daemon does not permit any more, after it has refused all with
// err: a new token has fewer rights. Each gets a gap, as in a session that goes on. If none is left,
// shed returns err.
func (l *loop) shed(life context.Context, err error) error {
	starts := l.s.topics.starts()
	if len(starts) == 0 {
		return err
	}
	refused, unclear := l.refusedOf(life, starts)
	switch {
	case unclear != nil && mayPass(unclear):
		return nil // it is refused again, and then this is tried again
	case unclear != nil:
		return unclear
	case len(refused) == len(starts):
		return err
	}
	for _, start := range refused {
		mark := l.s.topics.byName[start.Topic]
		if mark == nil || !mark.named {
			continue // it goes, or stays, with its pattern
		}
		err = nil
		at := mark.received
		l.s.drop(mark)
		l.waiting = append(l.waiting, received{Item{Gap: &wire.Gap{Topic: at.Topic, Reason: wire.GapForbidden, After: at, Position: at}}, mark, at})
	}
	return err
}

// refusedOf returns those of starts that the daemon does not permit: it names none of them, so they
// are tried together, and then in halves.
func (l *loop) refusedOf(life context.Context, starts []wire.Start) ([]wire.Start, error) {
	ctx, cancel := context.WithTimeoutCause(life, requestTimeout, errSilent)
	defer cancel()
	err := l.try(life, ctx, starts)
	switch half := len(starts) / 2; {
	case err == nil:
		return nil, nil
	case !hasCode(err, wire.CodeForbidden):
		return nil, err
	case half == 0:
		return starts, nil
	default:
		first, err := l.refusedOf(life, starts[:half])
		if err != nil {
			return nil, err
		}
		second, err := l.refusedOf(life, starts[half:])
		return append(slices.Clone(first), second...), err
	}
}
