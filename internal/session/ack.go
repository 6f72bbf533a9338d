package session

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

// fullLocked reports whether nothing more can be sent before the client acks.
func (p *Poll) fullLocked() bool {
	return !p.trust && !p.slides && len(p.session.unacked) >= p.session.config().Unacked
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
