package session

import (
	"errors"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Slide makes the poll one whose client never acks while it lasts, but says how many
// frames it has when it comes back: what was sent last is kept, up to the bound on
// unacked frames, and beyond it the oldest count as acked. So the poll is never
// held up by acks. It is called before anything is taken.
func (p *Poll) Slide() {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	p.slides = !p.trust
}

// GoesBackTo reports whether a poll that has the first ack frames would be served.
func (s *Session) GoesBackTo(ack uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended == nil && s.acks && s.acked <= ack && ack <= s.sent
}

// ClosedByClient reports whether err says that a session ended because its client
// wanted it to.
func ClosedByClient(err error) bool {
	p, ok := errors.AsType[*wire.Problem](err)
	return ok && p == closedProblem
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
