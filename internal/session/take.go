package session

import (
	"context"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Take takes frames within limit: those to be sent again first, then what is
// queued, then what is behind. If there are none it parks for as long as wait
// and then returns none; at once, if nothing can be sent before an ack. The
// frames are noted as sent. The error is a *wire.Problem if the poll must end,
// and ctx's if the client left.
func (p *Poll) Take(ctx context.Context, limit broker.Limit, wait time.Duration) ([]*frame.Frame, error) {
	if err := p.read(ctx); err != nil {
		return nil, err
	}
	defer func() { <-p.session.reading }()
	p.fresh = false
	frames, full, err := p.collect(ctx, queued{}, limit)
	if len(frames) > 0 || full && p.acks == nil || err != nil || wait <= 0 {
		return frames, err
	}
	return p.park(ctx, limit, wait, full)
}

// read gets hold of reading, unless the poll is over before.
func (p *Poll) read(ctx context.Context) error {
	select {
	case p.session.reading <- struct{}{}:
		return nil
	default:
	}
	if err := p.prepare(); err != nil {
		return err
	}
	select {
	case p.session.reading <- struct{}{}:
		return nil
	case <-p.stop:
		return p.why
	case <-ctx.Done():
		return ctx.Err()
	}
}

// park waits on the queue. It is the one place where a poll's goroutine spends
// its life. While the poll is full it leaves the queue as it is.
func (p *Poll) park(ctx context.Context, limit broker.Limit, wait time.Duration, full bool) ([]*frame.Frame, error) {
	p.letGo()
	if err := p.prepare(); err != nil {
		return nil, err
	}
	p.startTimeout(wait)
	defer p.timeout.Stop()
	for {
		queue := p.session.queue
		if full {
			queue = nil
		}
		var e queued
		select {
		case e = <-queue:
		case <-p.acks:
		case <-p.stop:
			return nil, p.why
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.timeout.C:
			return nil, nil
		}
		var frames []*frame.Frame
		var err error
		if frames, full, err = p.collect(ctx, e, limit); len(frames) > 0 || err != nil {
			p.fresh = err == nil
			return frames, err
		}
	}
}

// prepare makes what a poll waits on, unless it is over: a poll that parks on its
// connection needs neither, and an idle session should not pay for it.
func (p *Poll) prepare() error {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.why != nil {
		return p.why
	}
	s.shrinkLocked()
	if p.stop == nil {
		p.stop = make(chan struct{})
	}
	s.makeQueueLocked()
	return nil
}

func (p *Poll) startTimeout(wait time.Duration) {
	if p.timeout == nil {
		p.timeout = time.NewTimer(wait)
	} else {
		p.timeout.Reset(wait)
	}
}

// Fresh reports whether the last Take had parked and was woken by what it returned:
// the subscriber was there when it was published.
func (p *Poll) Fresh() bool { return p.fresh }

// collect takes what is there, e first, which was taken from the queue; without it,
// what the last taking could not send. If the poll must end, e waits for the next one. full says that nothing more can be sent before the client acks. The frames
// are valid until the next Take.
func (p *Poll) collect(ctx context.Context, e queued, limit broker.Limit) (frames []*frame.Frame, full bool, err error) {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.collectLocked(ctx, e, limit, time.Now())
}

func (p *Poll) collectLocked(ctx context.Context, e queued, limit broker.Limit, now time.Time) (frames []*frame.Frame, full bool, err error) {
	s := p.session
	if err := p.over(ctx); err != nil {
		s.carryLocked(e)
		return nil, false, err
	}
	if e.frame == nil {
		e, s.carried = s.carried, queued{}
	}
	t := taking{poll: p, now: now, limit: limit, frames: p.frames[:0]}
	t.resend()
	t.limit = p.roomLocked(t.limit)
	t.tellPatterns()
	pinned := s.pinned
	t.drain(e)
	if s.pinned < pinned {
		s.waiting = now.UnixNano()
	}
	t.catchUp()
	s.countLocked()
	p.frames = t.frames
	return t.frames, p.fullLocked(), nil
}

// over returns why the poll must end, or nil.
func (p *Poll) over(ctx context.Context) error {
	if p.why != nil {
		return p.why
	}
	return ctx.Err()
}

// turn is how many frames of one topic that is behind are taken before the next
// topic's turn comes.
const turn = 64

// A taking collects the frames of one Take. It lives within one hold of the
// session's lock and of reading.
type taking struct {
	poll   *Poll
	now    time.Time
	limit  broker.Limit
	frames []*frame.Frame
}

// resend takes the frames that were sent by earlier polls and not acked, with the
// numbers they have.
func (t *taking) resend() {
	p, s := t.poll, t.poll.session
	for p.resent < len(s.unacked) {
		f := s.resentLocked(p.resent, t.now)
		if !t.limit.Take(f, len(t.frames) == 0) {
			t.limit.Frames = 0
			return
		}
		t.frames = append(t.frames, f)
		s.in.metrics.Resent.Inc()
		if p.trust {
			s.letGoLocked(1)
		} else {
			p.resent++
		}
	}
}

// resentLocked returns the i-th unacked frame again. A message that the history
// let go of has become a gap, and stays one.
func (s *Session) resentLocked(i int, now time.Time) *frame.Frame {
	u := &s.unacked[i]
	if u.gap == nil {
		f, lost := u.sub.joined.Get(u.sub.positionOf(u), now)
		if f != nil {
			return f
		}
		u.gap = &wire.Gap{
			Topic: u.sub.joined.Topic(), Reason: lost,
			After: s.beforeLocked(i), Position: u.sub.positionOf(u),
		}
		s.in.metrics.Gaps.WithLabelValues(string(u.gap.Reason)).Inc()
	}
	return frame.NewGap(*u.gap)
}

// beforeLocked returns the position of the frame before the i-th unacked one, on
// the same topic.
func (s *Session) beforeLocked(i int) wire.Position {
	sub := s.unacked[i].sub
	for j := i - 1; j >= 0; j-- {
		if s.unacked[j].sub == sub {
			return sub.positionOf(&s.unacked[j])
		}
	}
	return sub.ackedTo
}

// tellPatterns takes the gaps of patterns, before anything of the topics that they
// stand for.
func (t *taking) tellPatterns() {
	s := t.poll.session
	for len(s.notices) > 0 && t.limit.Frames > 0 {
		t.catchUpWith(s.notices[0], broker.Limit{Frames: 1, Bytes: t.limit.Bytes})
		s.notices[0].behind = false
		s.notices = slices.Delete(s.notices, 0, 1)
	}
	if len(s.notices) > 0 {
		t.limit.Frames = 0
	}
}

// drain takes e and what is queued.
func (t *taking) drain(e queued) {
	s := t.poll.session
	depth := len(s.queue)
	if e.frame != nil {
		depth++
	}
	if depth > 0 {
		s.in.metrics.QueueDepth.Observe(float64(depth))
	}
	for {
		if e.frame != nil && !e.sub.dropped {
			f := e.sub.currentLocked(e.frame, t.now)
			if !t.limit.Take(f, len(t.frames) == 0) {
				s.carryLocked(e)
				t.limit.Frames = 0
				return
			}
			t.send(e.sub, f)
		}
		s.unpinLocked(e)
		select {
		case e = <-s.queue:
		default:
			return
		}
	}
}

// currentLocked returns f, or a gap if the message's own life is over.
func (sub *subscription) currentLocked(f *frame.Frame, now time.Time) *frame.Frame {
	if !f.Expired(now) {
		return f
	}
	return frame.NewGap(wire.Gap{
		Topic: sub.joined.Topic(), Reason: wire.GapExpired, After: sub.sentTo, Position: f.Position(),
	})
}

// catchUp takes from history, once the queue is drained, what is behind, topic by
// topic in turns. A topic's queued frames come before those it has in history, so
// nothing is read while the queue holds anything that did not fit.
func (t *taking) catchUp() {
	s := t.poll.session
	for len(s.behind) > 0 && t.limit.Frames > 0 && t.limit.Bytes > 0 {
		sub := s.behind[0]
		t.catchUpWith(sub, broker.Limit{Frames: min(turn, t.limit.Frames), Bytes: t.limit.Bytes})
		s.behind = slices.Delete(s.behind, 0, 1)
		if sub.behind {
			s.behind = append(s.behind, sub)
		}
	}
	if len(s.behind) == 0 {
		s.behind = nil
	}
}

// catchUpWith takes what the history has next for a subscription.
func (t *taking) catchUpWith(sub *subscription, limit broker.Limit) {
	frames := sub.catchUpLocked(limit, t.now)
	if n := len(frames); n > 0 {
		sub.last = frames[n-1].Position().Offset
	}
	for _, f := range frames {
		t.limit.Take(f, true)
		t.send(sub, f)
	}
	sub.settleLocked()
}

// send notes f as sent and appends it.
func (t *taking) send(sub *subscription, f *frame.Frame) {
	t.poll.noteSentLocked(sub, f)
	t.frames = append(t.frames, f)
}

// noteSentLocked gives f its number, before it is written.
func (p *Poll) noteSentLocked(sub *subscription, f *frame.Frame) {
	s := p.session
	s.sent++
	sub.sentTo = f.Position()
	if f.Gap() != nil {
		s.in.metrics.Gaps.WithLabelValues(string(f.Gap().Reason)).Inc()
	}
	if p.trust {
		s.acked++ // nothing is unacked before it: resend came first
		sub.ackedTo = sub.sentTo
		sub.settleLocked()
		return
	}
	p.slideLocked()
	s.unacked = append(s.unacked, sent{sub: sub, offset: sub.sentTo.Offset, gap: f.Gap()})
	p.resent++
}
