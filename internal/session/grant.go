package session

import (
	"slices"

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
	s.forbidPatternsLocked(allowed)
	for topic, sub := range s.subs.all() {
		if sub.named && !allowed(topic) {
			s.forbidTopicLocked(sub, true)
		}
	}
	if most := s.registry.cfg.Load().Subscriptions; len(s.notices) > most {
		s.endLocked(problem.New(wire.CodeSessionEnded, "open a session from your positions, and poll between renewals",
			"renewals ended more than %d subscriptions that no poll has reported yet", most), endedTopics)
	}
	s.wakeLocked()
	if s.ended != nil {
		return s.ended
	}
	return nil
}

// forbidPatternsLocked ends the subscriptions to patterns that are not allowed, and those to
// topics that only such patterns match.
func (s *Session) forbidPatternsLocked(allowed func(name string) bool) {
	had := len(s.patterns)
	for name, p := range s.patterns {
		if !allowed(name) {
			p.dropLocked()
			delete(s.patterns, name)
			s.noticeLocked(p.notice.ackedTo, s.registry.broker.PatternPosition(name))
		}
	}
	if len(s.patterns) == had {
		return
	}
	for topic, sub := range s.subs.all() {
		if !sub.named && !anyMatches(s.patterns, topic) {
			s.forbidTopicLocked(sub, false)
		}
	}
	s.notices = slices.DeleteFunc(s.notices, func(n notice) bool { return n.sub.dropped })
}

// forbidTopicLocked ends a subscription. Messages that are not acked are not sent again.
func (s *Session) forbidTopicLocked(sub *subscription, announce bool) {
	topic := sub.joined.Topic()
	for i := range s.window.unacked {
		if u := &s.window.unacked[i]; u.sub == sub && u.gap == nil {
			s.loseLocked(i)
			u.gap.Reason = wire.GapForbidden
		}
	}
	s.dropTopicLocked(topic)
	if announce {
		s.noticeLocked(sub.sentTo, wire.Position{Topic: topic, Epoch: sub.epoch, Offset: sub.last})
	}
}

// noticeLocked announces a gap, forbidden, between two positions of one name.
func (s *Session) noticeLocked(had, at wire.Position) {
	ended := &subscription{
		session: s, joined: s.registry.broker.Detached(at, false), named: true,
		epoch: at.Epoch, cursor: at.Offset, last: at.Offset, sentTo: had, ackedTo: had,
	}
	s.notices = append(s.notices, notice{ended, &wire.Gap{Topic: at.Topic, Reason: wire.GapForbidden, After: had, Position: at}})
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
