package session

import (
	"context"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Take takes frames within limit, and notes them as sent: first unacked frames of earlier
// polls, then queued frames, then those of subscriptions that are behind. If there are
// none, it parks for up to wait, unless the session can send nothing before an ack that
// cannot come. The frames are valid until the next Take. The error is a *wire.Problem if
// the poll must end, and ctx's if the client has left.
func (p *Reader) Take(ctx context.Context, limit frame.Limit, wait time.Duration) ([]*frame.Frame, error) {
	reading := &p.session.reading
	if !reading.tryTake() { // another poll takes frames
		if err := p.prepareToWait(); err != nil {
			return nil, err
		}
		for released := reading.released(); !reading.tryTake(); {
			select {
			case <-released:
			case <-p.stop:
				return nil, p.why
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	defer reading.release()
	p.fresh = false
	frames, full, err := p.collect(ctx, queued{}, limit)
	if len(frames) > 0 || full && p.acks == nil || err != nil || wait <= 0 {
		return frames, err
	}
	return p.park(ctx, limit, wait, full)
}

// Fresh reports whether the last Take was parked when its frames were published.
func (p *Reader) Fresh() bool { return p.fresh }

// prepareToWait makes what a poll's goroutine waits on, unless the poll must end. A poll
// that parks on its connection needs neither, so an idle session does not pay for them.
func (p *Reader) prepareToWait() error {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.why != nil {
		return p.why
	}
	s.shrinkUnackedLocked()
	if p.stop == nil {
		p.stop = make(chan struct{})
	}
	s.makeQueueLocked()
	return nil
}

// park waits on the queue: a poll's goroutine spends its life here. While the window is
// full, it waits for acks only and leaves the queue alone.
func (p *Reader) park(ctx context.Context, limit frame.Limit, wait time.Duration, full bool) ([]*frame.Frame, error) {
	p.releaseFrames()
	if err := p.prepareToWait(); err != nil {
		return nil, err
	}
	if p.timeout == nil {
		p.timeout = time.NewTimer(wait)
	} else {
		p.timeout.Reset(wait)
	}
	defer p.timeout.Stop()
	for {
		queue := p.session.queue.frames
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

// collect takes frames without waiting. e was taken from the queue and precedes the rest of
// it; the zero value stands for the entry that the last collect left over. full reports
// that the window is full. If the poll must end, e is kept for the next one.
func (p *Reader) collect(ctx context.Context, e queued, limit frame.Limit) (frames []*frame.Frame, full bool, err error) {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.collectLocked(ctx, e, limit, time.Now())
}

func (p *Reader) collectLocked(ctx context.Context, e queued, limit frame.Limit, now time.Time) (frames []*frame.Frame, full bool, err error) {
	s := p.session
	if err = ctx.Err(); p.why != nil {
		err = p.why
	}
	if err != nil {
		s.putBackLocked(e)
		return nil, false, err
	}
	if e.frame == nil {
		e, s.queue.leftover = s.queue.leftover, queued{}
	}
	c := collector{poll: p, now: now, limit: limit, frames: p.frames[:0]}
	c.resend()
	c.limit = p.withinWindowLocked(c.limit)
	c.announce(false)
	pinned := s.queue.pinned
	c.drain(e)
	if s.queue.pinned < pinned {
		s.queue.waiting = now.UnixNano()
	}
	c.catchUp()
	if n := len(c.frames); n > 0 && len(s.notices) > 0 {
		c.announce(true)
		c.frames = append(slices.Clip(c.frames[n:]), c.frames[:n]...)
	}
	if p.lasts && s.tellAt == tellNow {
		if f := p.movedLocked(false, now); f != nil {
			c.frames = append(c.frames, f)
		}
	}
	s.countLocked()
	p.frames = c.frames
	if p.acking == AcksLater {
		p.notePatternsLocked()
	}
	return p.frames, p.windowFullLocked(), nil
}

// A collector collects the frames of one Take, while the poll holds the session's lock and
// its reading.
type collector struct {
	poll   *Reader
	now    time.Time
	limit  frame.Limit // what is left of it
	frames []*frame.Frame
}

// resend takes the unacked frames of earlier polls again, with the numbers they have.
func (c *collector) resend() {
	p, s := c.poll, c.poll.session
	for p.resent < len(s.window.unacked) {
		// A message that the history no longer has becomes a gap.
		u, lost := &s.window.unacked[p.resent], wire.GapRestarted
		var f *frame.Frame
		if u.gap == nil {
			if f, lost = u.sub.joined.Get(u.position(), c.now); f == nil {
				s.loseLocked(p.resent)
			}
		}
		if f == nil {
			if u.gap.Reason == "" { // it is sent for the first time
				u.gap.Reason = lost
				s.registry.metrics.Gaps.WithLabelValues(string(lost)).Inc()
			}
			f = frame.NewGap(*u.gap)
		}
		if !c.limit.Take(f, len(c.frames) == 0) {
			c.limit.Frames = 0
			return
		}
		c.frames = append(c.frames, f)
		s.registry.metrics.Resent.Inc()
		if p.acking == Trusted {
			s.ackOldestLocked(1)
		} else {
			p.resent++
		}
	}
}

// A notice is a gap to announce.
type notice struct {
	sub *subscription
	gap *wire.Gap // nil: what the subscription reads
}

func (n notice) isUnfollowed() bool { return n.gap != nil && n.gap.Reason == wire.GapUnfollowed }

// announce takes the notices. The gaps of patterns go before all frames of their topics.
//
// A stateless poll finds at each beginning which topics do not fit. If gaps, unfollowed, came alone
// or left no space for a large message, the client would poll again at once, for ever. So they are
// taken last. They go before the messages all the same: a topic may have been made again since.
func (c *collector) announce(last bool) {
	s := c.poll.session
	for i := 0; i < len(s.notices) && c.limit.Frames > 0; {
		n := s.notices[i]
		if !last && s.number == 0 && n.isUnfollowed() {
			i++
			continue
		}
		if n.sub.dropped {
			// Of a topic that was forgotten, nothing is to come.
		} else if n.gap != nil {
			f := frame.NewGap(*n.gap)
			c.limit.Take(f, true)
			c.poll.noteSentLocked(n.sub, f)
			c.frames = append(c.frames, f)
		} else {
			c.read(n.sub, 1)
			n.sub.behind = false
		}
		s.notices = slices.Delete(s.notices, i, i+1)
	}
}

// drain takes e and the queue, as far as the limit allows.
func (c *collector) drain(e queued) {
	s := c.poll.session
	depth := len(s.queue.frames)
	if e.frame != nil {
		depth++
	}
	if depth > 0 {
		s.registry.metrics.QueueDepth.Observe(float64(depth))
	}
	for {
		if e.frame != nil && !e.sub.dropped {
			f := e.frame
			if f.Expired(c.now) {
				f = frame.NewGap(wire.Gap{
					Topic: e.sub.joined.Topic(), Reason: wire.GapExpired, After: e.sub.sentTo, Position: f.Position(),
				})
			}
			if !c.limit.Take(f, len(c.frames) == 0) {
				s.putBackLocked(e)
				c.limit.Frames = 0
				return
			}
			c.poll.noteSentLocked(e.sub, f)
			c.frames = append(c.frames, f)
		}
		s.unpinLocked(e)
		select {
		case e = <-s.queue.frames:
		default:
			return
		}
	}
}

// turnFrames is how many frames of one topic catchUp takes before the next topic's turn.
const turnFrames = 64

// catchUp reads the histories of the subscriptions that are behind, in turns. It takes
// nothing until the queue is drained: the queued frames of a topic go first.
func (c *collector) catchUp() {
	s := c.poll.session
	for len(s.behind) > 0 && c.limit.Frames > 0 && c.limit.Bytes > 0 {
		sub := s.behind[0]
		c.read(sub, turnFrames)
		s.behind = slices.Delete(s.behind, 0, 1)
		if sub.behind {
			s.behind = append(s.behind, sub)
		}
	}
	if len(s.behind) == 0 {
		s.behind = nil
	}
}

// read takes up to n frames that the history has next for a subscription.
func (c *collector) read(sub *subscription, n int) {
	frames := sub.readLocked(frame.Limit{Frames: min(n, c.limit.Frames), Bytes: c.limit.Bytes}, c.now)
	if n := len(frames); n > 0 {
		sub.last = frames[n-1].Position().Offset
	}
	for _, f := range frames {
		c.limit.Take(f, true)
		c.poll.noteSentLocked(sub, f)
	}
	c.frames = append(c.frames, frames...)
	if sub.session.noEcho && sub.cursor > sub.last {
		sub.session.noteMovedLocked(c.now)
	}
	sub.releaseTopicLocked()
}
