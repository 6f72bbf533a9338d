package session

import (
	"slices"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A window has the unacked frames, at most Config.Unacked. See Acking.
type window struct {
	unacked []sent // frames acked+1 to sent; none while a poll is Trusted
	sent    uint64 // number of the newest frame
	acked   uint64 // number of the newest frame that the client has acked
}

// sent notes one frame that was sent: a gap, which never changes, or a reference into the
// topic's history.
type sent struct {
	sub    *subscription
	offset uint64
	gap    *wire.Gap
}

// position returns where the client is once it has the frame.
func (f *sent) position() wire.Position {
	if f.gap != nil {
		return f.gap.Position
	}
	return wire.Position{Topic: f.sub.joined.Topic(), Epoch: f.sub.epoch, Offset: f.offset}
}

// CheckAck returns the problem that a poll with this ack would get, or nil: stale_ack,
// ack_beyond_sent, or that with which the session ended. It changes nothing.
func (s *Session) CheckAck(ack uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil:
		return s.ended
	case !s.acks:
		return nil
	}
	return s.checkAckLocked(ack)
}

// Ack acks the first n frames while a poll lasts. Acks may be repeated. The error is a
// *wire.Problem: ack_beyond_sent.
func (s *Session) Ack(n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.acks || n <= s.window.acked || s.ended != nil {
		return nil
	}
	before := len(s.window.unacked)
	if err := s.ackLocked(n); err != nil {
		return err
	}
	if p := s.readers.newest; p != nil {
		p.resent = max(0, p.resent-(before-len(s.window.unacked)))
		// The window was full, or a reload has widened it since the poll parked.
		if p.acks != nil && (before >= s.registry.cfg.Load().Unacked || s.hasBacklogLocked()) {
			select {
			case p.acks <- struct{}{}:
			default:
			}
			s.wakeParkedLocked()
		}
	}
	if s.readers.parked != nil {
		s.shrinkUnackedLocked()
	}
	return nil
}

// ackLocked acks the first ack frames.
func (s *Session) ackLocked(ack uint64) error {
	err := s.checkAckLocked(ack)
	if err == nil {
		s.ackOldestLocked(int(ack - s.window.acked))
	}
	return err
}

func (s *Session) checkAckLocked(ack uint64) error {
	switch {
	case ack < s.window.acked:
		return problem.New(wire.CodeStaleAck, "if you have started no newer poll, open a session from your positions",
			"ack=%d is below an earlier ack=%d", ack, s.window.acked)
	case ack > s.window.sent:
		return problem.New(wire.CodeAckBeyondSent, "send the number of frames that you have received in this session",
			"ack must be at most %d, the number of frames that this session has sent; got %d", s.window.sent, ack)
	}
	return nil
}

// ackOldestLocked counts the n oldest unacked frames as acked.
func (s *Session) ackOldestLocked(n int) {
	for i := range s.window.unacked[:n] {
		f := &s.window.unacked[i]
		if i+1 < n && s.window.unacked[i+1].sub == f.sub {
			continue // the next frame has the newer position
		}
		f.sub.ackedTo = f.position()
		f.sub.releaseTopicLocked()
	}
	s.window.acked += uint64(n)
	s.window.unacked = slices.Delete(s.window.unacked, 0, n)
}

// loseLocked replaces the i-th unacked message by a gap, which has no reason until it is
// sent.
func (s *Session) loseLocked(i int) {
	f := &s.window.unacked[i]
	after := f.sub.ackedTo
	for j := i - 1; j >= 0; j-- {
		if s.window.unacked[j].sub == f.sub {
			after = s.window.unacked[j].position()
			break
		}
	}
	f.gap = &wire.Gap{Topic: f.sub.joined.Topic(), After: after, Position: f.position()}
}

// shrinkUnackedLocked frees the list of a burst before the poll waits. A session that is
// catching up would need it again.
func (s *Session) shrinkUnackedLocked() {
	if len(s.window.unacked) == 0 && cap(s.window.unacked) > 64 {
		s.window.unacked = nil
		s.countLocked()
	}
}

// windowFullLocked reports whether the session can send nothing before an ack.
func (p *Reader) windowFullLocked() bool {
	return (p.acking == AcksNext || p.acking == AcksDuring) && len(p.session.window.unacked) >= p.session.registry.cfg.Load().Unacked
}

// withinWindowLocked returns the part of limit that fits into the window.
func (p *Reader) withinWindowLocked(limit frame.Limit) frame.Limit {
	s := p.session
	switch most := s.registry.cfg.Load().Unacked; p.acking {
	case Trusted:
	case AcksLater:
		limit.Frames = min(limit.Frames, max(1, most-slideBy(most))) // one Take must not slide over itself
	default:
		limit.Frames = min(limit.Frames, most-len(s.window.unacked))
	}
	return limit
}

// noteSentLocked gives f its number. It is called before f is written.
func (p *Reader) noteSentLocked(sub *subscription, f *frame.Frame) {
	s := p.session
	s.window.sent++
	sub.sentTo = f.Position()
	if f.Gap() != nil {
		s.registry.metrics.Gaps.WithLabelValues(string(f.Gap().Reason)).Inc()
	}
	if p.acking == Trusted {
		s.window.acked++ // resend came first, so no older frame is unacked
		sub.ackedTo = sub.sentTo
		sub.releaseTopicLocked()
		return
	}
	if most := s.registry.cfg.Load().Unacked; p.acking == AcksLater && len(s.window.unacked) >= most { // the window slides
		n := len(s.window.unacked) - most + slideBy(most)
		s.ackOldestLocked(n)
		p.resent -= n
	}
	s.window.unacked = append(s.window.unacked, sent{sub: sub, offset: sub.sentTo.Offset, gap: f.Gap()})
	p.resent++
}

// slideBy is how many frames leave a full window at a time: to move the list for each
// frame would cost more than to send the frame.
func slideBy(window int) int { return max(1, window/8) }
