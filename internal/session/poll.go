package session

import (
	"context"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Poll is one request's hold on its session. It is for one goroutine, which
// must call Done at the end.
type Poll struct {
	session *Session
	trust   bool          // what is taken counts as acked
	stop    chan struct{} // closed once, under session.mu, when the poll must end
	why     *wire.Problem // set before stop is closed
	resent  int           // how many of session.unacked this poll has taken; guarded by session.mu
	fresh   bool          // see Fresh; of the poll's goroutine
}

// Poll begins a poll that has the first ack frames of the session, and ends the
// one that is parked, if any. With trust, as streams have it, frames taken count
// as acked. The error is a *wire.Problem: stale_ack or ack_beyond_sent, and then
// nothing was touched, or the reason why the session ended.
func (s *Session) Poll(ack uint64, trust bool, now time.Time) (*Poll, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, s.ended
	}
	if s.acks {
		if err := s.ackLocked(ack); err != nil {
			return nil, err
		}
	}
	if s.poll != nil {
		s.poll.stopLocked(wire.NewProblem(wire.CodePollReplaced, "do not poll again: the newer poll gets the messages",
			"a newer poll took this one's place"))
	}
	s.poll = &Poll{session: s, trust: trust || !s.acks, stop: make(chan struct{})}
	s.active = now
	return s.poll, nil
}

// ackLocked lets go of the frames that the client has.
func (s *Session) ackLocked(ack uint64) error {
	switch {
	case ack < s.acked:
		return wire.NewProblem(wire.CodeStaleAck, "if no newer poll is yours, open a session from your positions",
			"ack=%d is below ack=%d made before", ack, s.acked)
	case ack > s.sent:
		return wire.NewProblem(wire.CodeAckBeyondSent, "ack the number of frames that this session has sent you",
			"ack=%d, but %d frames were sent", ack, s.sent)
	}
	s.letGoLocked(int(ack - s.acked))
	return nil
}

// letGoLocked counts the n oldest unacked frames as acked.
func (s *Session) letGoLocked(n int) {
	for _, f := range s.unacked[:n] {
		f.sub.ackedTo = f.sub.joined.Position(f.offset)
	}
	s.acked += uint64(n)
	s.unacked = slices.Delete(s.unacked, 0, n)
	if len(s.unacked) == 0 && cap(s.unacked) > 64 {
		s.unacked = nil // a burst's list should not stay with an idle session
	}
}

func (p *Poll) stopLocked(why *wire.Problem) {
	if p.why == nil {
		p.why = why
		close(p.stop)
	}
}

// Done ends the poll.
func (p *Poll) Done(now time.Time) {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.poll == p {
		s.poll = nil
	}
	s.active = now
}

// Hello says from where each topic goes on: what is not acked comes again.
func (p *Poll) Hello() []wire.Position {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.session.ackedPositionsLocked()
}

// Take takes frames within limit: those to be sent again first, then what is
// queued, then what is behind. If there are none it parks for as long as wait
// and then returns none; at once, if nothing can be sent before an ack. The
// frames are noted as sent. The error is a *wire.Problem if the poll must end,
// and ctx's if the client left.
func (p *Poll) Take(ctx context.Context, limit broker.Limit, wait time.Duration) ([]*wire.Frame, error) {
	if err := p.read(ctx); err != nil {
		return nil, err
	}
	defer func() { <-p.session.reading }()
	p.fresh = false
	e := p.session.carried
	p.session.carried = queued{}
	frames, full, err := p.collect(ctx, e, limit)
	if len(frames) > 0 || full || err != nil || wait <= 0 {
		return frames, err
	}
	return p.park(ctx, limit, wait)
}

// read gets hold of reading, unless the poll is over before.
func (p *Poll) read(ctx context.Context) error {
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
// its life.
func (p *Poll) park(ctx context.Context, limit broker.Limit, wait time.Duration) ([]*wire.Frame, error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		select {
		case e := <-p.session.queue:
			frames, _, err := p.collect(ctx, e, limit)
			if len(frames) > 0 || err != nil {
				p.fresh = err == nil
				return frames, err
			}
		case <-p.stop:
			return nil, p.why
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timeout.C:
			return nil, nil
		}
	}
}

// Fresh reports whether the last Take had parked and was woken by what it returned:
// the subscriber was there when it was published.
func (p *Poll) Fresh() bool { return p.fresh }

// collect takes what is there, e first. If the poll must end, e waits for the next
// one. full says that nothing more can be sent before the client acks.
func (p *Poll) collect(ctx context.Context, e queued, limit broker.Limit) (frames []*wire.Frame, full bool, err error) {
	s := p.session
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := p.over(ctx); err != nil {
		s.carry(e)
		return nil, false, err
	}
	t := taking{poll: p, now: now, limit: limit}
	t.resend()
	if !p.trust {
		t.limit.Frames = min(t.limit.Frames, s.cfg.Unacked-len(s.unacked))
	}
	t.drain(e)
	t.catchUp()
	return t.frames, !p.trust && len(s.unacked) >= s.cfg.Unacked, nil
}

// over returns why the poll must end, or nil.
func (p *Poll) over(ctx context.Context) error {
	if p.why != nil {
		return p.why
	}
	return ctx.Err()
}
