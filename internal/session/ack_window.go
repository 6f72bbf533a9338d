package session

import (
	"slices"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// sent notes one frame that was sent: a gap, which never changes, or a reference
// into the topic's history.
type sent struct {
	sub    *subscription
	offset uint64
	gap    *wire.Gap
}

// HearAcks makes the poll one whose client acks while it lasts, see Session.Ack: when
// nothing more can be sent before an ack, it waits for one. It is called before
// anything is taken. A poll that trusts its connection has no use for acks.
func (p *Poll) HearAcks() {
	p.session.mu.Lock() // an older connection may bring an ack already
	defer p.session.mu.Unlock()
	if !p.trust {
		p.acks = make(chan struct{}, 1)
	}
}

// Slide makes the poll one whose client never acks while it lasts, but says how many
// frames it has when it comes back: what was sent last is kept, up to the bound on
// unacked frames, and beyond it the oldest count as acked. So the poll is never
// held up by acks. It is called before anything is taken.
func (p *Poll) Slide() {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	p.slides = !p.trust
}

// Ack says, while a poll goes on, that the client has the first n frames. What was
// acked before, or counts as acked since, it may say again. The error is a
// *wire.Problem: ack_beyond_sent.
func (s *Session) Ack(n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.acks || n <= s.acked || s.ended != nil {
		return nil
	}
	before := len(s.unacked)
	if err := s.ackLocked(n); err != nil {
		return err
	}
	if p := s.poll; p != nil {
		p.resent = max(0, p.resent-(before-len(s.unacked)))
		p.ackedLocked(before)
	}
	if s.parked != nil {
		s.shrinkLocked()
	}
	return nil
}

// ackedLocked has a poll go on that was full with so many unacked frames, or when a
// reload has widened its window since.
func (p *Poll) ackedLocked(before int) {
	s := p.session
	if p.acks == nil || before < s.config().Unacked && !s.waitsLocked() {
		return
	}
	select {
	case p.acks <- struct{}{}:
	default:
	}
	if s.parked == p {
		s.wakeParkedLocked()
	}
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
	for i, f := range s.unacked[:n] {
		if i+1 < n && s.unacked[i+1].sub == f.sub {
			continue // the next says more
		}
		f.sub.ackedTo = f.sub.positionOf(&s.unacked[i])
		f.sub.settleLocked()
	}
	s.acked += uint64(n)
	s.unacked = slices.Delete(s.unacked, 0, n)
}

// shrinkLocked lets go of the list of a burst, which should not stay with a session
// that waits. One that is catching up needs it again.
func (s *Session) shrinkLocked() {
	if len(s.unacked) == 0 && cap(s.unacked) > 64 {
		s.unacked = nil
		s.countLocked()
	}
}

// GoesBackTo reports whether a poll that has the first ack frames would be served.
func (s *Session) GoesBackTo(ack uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended == nil && s.acks && s.acked <= ack && ack <= s.sent
}

// fullLocked reports whether nothing more can be sent before the client acks.
func (p *Poll) fullLocked() bool {
	return !p.trust && !p.slides && len(p.session.unacked) >= p.session.config().Unacked
}

// roomLocked is the part of limit that may be sent before the client acks.
func (p *Poll) roomLocked(limit broker.Limit) broker.Limit {
	s := p.session
	switch most := s.config().Unacked; {
	case p.trust:
	case p.slides:
		limit.Frames = min(limit.Frames, max(1, most-slideOf(most))) // what is sent together is all kept
	default:
		limit.Frames = min(limit.Frames, most-len(s.unacked))
	}
	return limit
}

// slideOf is how many frames leave a full window together: to move the rest for each
// frame would cost more than the frame.
func slideOf(window int) int { return max(1, window/8) }

// slideLocked makes room for one more frame in the window.
func (p *Poll) slideLocked() {
	s := p.session
	most := s.config().Unacked
	if !p.slides || len(s.unacked) < most {
		return
	}
	n := len(s.unacked) - most + slideOf(most)
	s.letGoLocked(n)
	p.resent -= n
}
