package session

import (
	"cmp"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Grant returns what the session's client may do. It may have expired: then the session
// begins no poll until Renew.
func (s *Session) Grant() *auth.Grant { return s.grant.Load() }

var (
	expiredProblem = problem.New(wire.CodeTokenExpired, "renew the session with PATCH and a new token, and then poll again",
		"the token of the session has expired")
	revokedProblem = problem.New(wire.CodeSessionEnded, "get a new token, and open a session from your positions",
		"the credentials of the session were revoked")
	endedByOperator       = problem.New(wire.CodeSessionEnded, "open a session from your positions", "an operator ended the session")
	revokedWithoutSession = problem.New(wire.CodeUnauthorized, "get a new token", "the credentials were revoked")
)

// Renew gives the session another grant of the same principal, if that renews the one it
// has. A subscription for which allowed returns false ends: its client gets a gap,
// forbidden. The error is the problem with which the session ended.
func (s *Session) Renew(g *auth.Grant, allowed func(name string) bool) error {
	if p := s.registry.presence; p != nil {
		defer p.Flush() // after the lock
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	if !g.Renews(s.grant.Load()) {
		return nil
	}
	s.grant.Store(g)
	if s.registry.isRevoked(g) { // after the store: or EndRevoked finds it
		s.endLocked(revokedProblem, endedRevoked)
		return s.ended
	}
	if !g.Expires.IsZero() {
		s.registry.sessions.visitBy(s, g.Expires)
	}
	s.forbidLocked(func(name string) (detail string, refused bool) {
		sub := s.subs.get(name)
		return "", (sub == nil || sub.named) && !allowed(name) // a topic that only patterns match goes with them
	})
	if s.ended != nil {
		return s.ended
	}
	s.renewLocked()
	return nil
}

// forbidLocked ends the subscriptions to what is refused, each with a gap that has the detail, and
// returns how many. A topic that only such patterns match ends without a gap of its own.
func (s *Session) forbidLocked(refuses func(name string) (detail string, refused bool)) (ended int) {
	ended = s.forbidPatternsLocked(refuses)
	for topic, sub := range s.subs.all() {
		if detail, refused := refuses(topic); refused {
			s.forbidTopicLocked(sub, detail)
			at := wire.Position{Topic: topic, Epoch: sub.epoch, Offset: sub.last}
			if sub.sentTo.Epoch == at.Epoch {
				at.Offset = max(at.Offset, sub.sentTo.Offset) // it may have moved
			}
			s.noticeLocked(sub.sentTo, at, detail)
			ended++
		}
	}
	cfg := s.registry.cfg.Load()
	most := cfg.Subscriptions
	if s.matched != nil {
		most += cfg.mostMatched()
	}
	if len(s.notices) > most {
		s.endLocked(problem.New(wire.CodeSessionEnded, "open a session from your positions, and poll more often",
			"more than %d subscriptions that are no longer permitted have ended, and no poll has reported them yet", most), endedTopics)
	}
	s.wakeLocked()
	return ended
}

// forbidPatternsLocked ends the subscriptions to patterns that are refused, and those to topics that
// only such patterns match. It returns how many patterns these are.
func (s *Session) forbidPatternsLocked(refuses func(name string) (detail string, refused bool)) (ended int) {
	for name, p := range s.patterns {
		if detail, refused := refuses(name); refused {
			p.dropLocked()
			delete(s.patterns, name)
			s.noticeLocked(p.notice.ackedTo, s.registry.broker.PatternPosition(name), detail)
			ended++
		}
	}
	if ended == 0 {
		return 0
	}
	for topic, sub := range s.subs.all() {
		if !sub.named && !anyMatches(s.patterns, topic) {
			s.forbidTopicLocked(sub, "")
		}
	}
	s.dropNoticesLocked()
	return ended
}

// forbidTopicLocked ends a subscription. Messages that are not acked are not sent again.
func (s *Session) forbidTopicLocked(sub *subscription, detail string) {
	for i := range s.window.unacked {
		if u := &s.window.unacked[i]; u.sub == sub && u.gap == nil {
			s.loseLocked(i)
			u.gap.Reason, u.gap.Detail = wire.GapForbidden, detail
		}
	}
	s.dropTopicLocked(sub.joined.Topic())
}

// noticeLocked announces a gap, forbidden, between two positions of one name.
func (s *Session) noticeLocked(had, at wire.Position, detail string) {
	ended := &subscription{
		session: s, joined: s.registry.broker.Detached(at, false), named: true,
		epoch: at.Epoch, cursor: at.Offset, last: at.Offset, sentTo: had, ackedTo: had,
	}
	s.notices = append(s.notices, notice{ended, &wire.Gap{Topic: at.Topic, Reason: wire.GapForbidden, After: had, Position: at, Detail: detail}})
}

// Forbid ends the subscriptions to what is forbidden to a subject, and returns how many sessions
// had such. From then on, none of its sessions has one.
func (r *Registry) Forbid(subject string) (sessions int) {
	r.sessions.each(func(s *Session) {
		if s.Grant().Subject == subject && s.endWhatIsForbidden() {
			sessions++
		}
	})
	return sessions
}

// endWhatIsForbidden ends the subscriptions to what is forbidden to the session's subject, and
// reports whether there were any.
func (s *Session) endWhatIsForbidden() bool {
	// Fast path: without the lock, as to most subjects nothing is forbidden.
	if len(s.forbidden()) == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	forbidden := s.forbidden()
	return s.ended == nil && 0 < s.forbidLocked(func(name string) (detail string, refused bool) {
		if p := forbidden.Find(name); p != nil {
			return p.Reason, true
		}
		return "", false
	})
}

// forbidden returns what is forbidden to the session's subject.
func (s *Session) forbidden() auth.Prohibitions {
	if s.registry.forbidden == nil {
		return nil
	}
	return s.registry.forbidden(s.Grant().Subject)
}

// EndSubject ends the sessions of a subject with a detail for people, and returns how many.
func (r *Registry) EndSubject(subject, detail string) (ended int) {
	why := problem.New(wire.CodeSessionEnded, "open a session from your positions", "%s", cmp.Or(detail, "the application ended the session"))
	r.sessions.each(func(s *Session) {
		if s.Grant().Subject == subject {
			r.end(s, why, endedRevoked)
			ended++
		}
	})
	return ended
}

// EndRevoked ends the sessions whose grants are revoked, and returns how many. From then on
// none of these grants has a session.
func (r *Registry) EndRevoked() (ended int) {
	r.sessions.each(func(s *Session) {
		if r.endIfRevoked(s) {
			ended++
		}
	})
	return ended
}

// EndNumber ends the session of this number in List, and reports whether there was one.
func (r *Registry) EndNumber(number uint64) (ended bool) {
	r.sessions.each(func(s *Session) {
		if s.number == number && number != 0 {
			r.end(s, endedByOperator, endedRevoked)
			ended = true
		}
	})
	return ended
}

func (r *Registry) isRevoked(g *auth.Grant) bool { return r.revoked != nil && r.revoked(g) }

// endIfRevoked ends a session if its grant is revoked, and reports whether it has.
func (r *Registry) endIfRevoked(s *Session) bool {
	// Fast path: without the lock, as most are not.
	if !r.isRevoked(s.grant.Load()) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil || !r.isRevoked(s.grant.Load()) { // Renew may have been faster
		return false
	}
	why := revokedProblem
	if s.ephemeral {
		why = revokedWithoutSession
	}
	s.endLocked(why, endedRevoked)
	return true
}
