package session

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
	}
	return nil
}
