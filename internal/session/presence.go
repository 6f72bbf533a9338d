package session

import (
	"math"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Presence learns who is on the topics that have presence. All methods may be called
// concurrently.
//
// A session that is subscribed to such a topic makes its client a member while it has a reader, and
// until it has had none for the topic's grace. Polls end and begin all the time, so their ends tell
// nothing: the wheel visits the session when the grace has passed. A later reader makes the client
// a member again. A session of one poll or connection has its client until it ends.
type Presence interface {
	// Joined says that a session makes its client a member of a topic, and Left that it no longer
	// does. The client left at the given time: when the session ended or, if it had no reader then, when
	// it last had one. Zero: it has unsubscribed, so no grace holds. Renewed says that the session has another token. m has
	// the session's subject and the name of its client; both may be empty. issued is when the token
	// was issued; zero: there is none. They run under the session's lock, so they must not block or
	// call back.
	Joined(topic string, m wire.Member, issued time.Time)
	Renewed(topic string, m wire.Member, issued time.Time)
	Left(topic string, m wire.Member, at time.Time)

	// Flush publishes who has joined or has other claims. Sweep is called about once a second, and
	// publishes the rest. Both may call back, because the caller holds no lock.
	Flush()
	Sweep(now time.Time)
}

// appearLocked makes the session's client a member of the topic, if the topic has presence and the
// client is there. If the topic has presence no longer, the client leaves.
func (sub *subscription) appearLocked() {
	s, rule := sub.session, sub.joined.Rule()
	switch {
	case !rule.Presence || s.registry.presence == nil || sub.dropped:
		sub.disappearLocked()
	case !sub.present && s.isAwayLocked(rule.PresenceGrace, time.Now()):
		s.away = true
	default:
		if !sub.present {
			sub.present = true
			s.registry.presence.Joined(sub.joined.Topic(), s.member(), s.Grant().Issued)
		}
		s.noteGraceLocked(rule.PresenceGrace)
	}
}

// disappearLocked ends one session's stay on the topic when the topic's grace has passed.
func (sub *subscription) disappearLocked() {
	at := time.Now()
	if s := sub.session; !s.isReadLocked() {
		at = s.lastReadLocked()
	}
	sub.leaveLocked(at)
}

// leaveLocked ends one session's stay on the topic, from which it has been away since the given time.
func (sub *subscription) leaveLocked(since time.Time) {
	if sub.present {
		sub.present = false
		sub.session.registry.presence.Left(sub.joined.Topic(), sub.session.member(), since)
	}
}

// isReadLocked reports whether the session has a reader. One for a poll or a connection has it
// until its end.
func (s *Session) isReadLocked() bool { return s.readers.newest != nil || s.ephemeral }

// lastReadLocked returns when a session without a reader last had one, or when it was opened.
func (s *Session) lastReadLocked() time.Time { return s.opened.Add(s.active) }

// isAwayLocked reports whether the session has had no reader for the grace.
func (s *Session) isAwayLocked(grace time.Duration, now time.Time) bool {
	return !s.isReadLocked() && !s.lastReadLocked().Add(grace).After(now)
}

// noteGraceLocked notes the grace of a topic of which the client is a member. Without a reader, the
// session is visited when it has passed.
func (s *Session) noteGraceLocked(grace time.Duration) {
	if ms := uint32(min(max(grace.Milliseconds(), 1), math.MaxUint32)); s.grace == 0 || ms < s.grace {
		s.grace = ms
		s.visitAfterGraceLocked()
	}
}

// visitAfterGraceLocked has the session visited when its shortest grace has passed, unless it has a
// reader.
func (s *Session) visitAfterGraceLocked() {
	if s.grace > 0 && !s.isReadLocked() {
		s.registry.sessions.visitBy(s, s.lastReadLocked().Add(time.Duration(s.grace)*time.Millisecond))
	}
}

// departLocked ends the stay on the topics whose grace the session has been without a reader, and
// has the session visited when that of the next one has passed.
func (s *Session) departLocked(now time.Time) {
	if s.grace == 0 {
		return
	}
	s.grace = 0
	for _, sub := range s.subs.all() {
		switch grace := sub.joined.Rule().PresenceGrace; {
		case !sub.present:
		case s.isAwayLocked(grace, now):
			sub.disappearLocked()
			s.away = true
		default:
			s.noteGraceLocked(grace)
		}
	}
}

// reappearLocked makes the client a member again when a reader begins, and follows a change of the
// topics' rules.
func (s *Session) reappearLocked() {
	s.away = false
	for _, sub := range s.subs.all() {
		sub.appearLocked()
	}
}

// renewLocked tells that the client has the claims of another token.
func (s *Session) renewLocked() {
	for topic, sub := range s.subs.all() {
		if sub.present {
			s.registry.presence.Renewed(topic, s.member(), s.Grant().Issued)
		}
	}
}

// reappear follows a change of the topics' rules.
func (s *Session) reappear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reappearLocked()
}

func (s *Session) member() wire.Member {
	g := s.Grant()
	return wire.Member{Subject: g.Subject, Client: s.client, Claims: g.Claims}
}
