package session

import (
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Presence learns who is on the topics that have presence. All methods may be called
// concurrently.
type Presence interface {
	// Joined says that a session has subscribed to a topic, and Left that it is no longer
	// subscribed. m has the session's subject and the name of its client; both may be empty.
	// They run under the session's lock, so they must not block or call back.
	Joined(topic string, m wire.Member)
	Left(topic string, m wire.Member)

	// Flush publishes who has joined. Sweep is called about once a second, and publishes the
	// rest. Both may call back, because the caller holds no lock.
	Flush()
	Sweep(now time.Time)
}

// appearLocked makes the session's client a member of the topic, if the topic has presence.
// If it has no longer, the client leaves.
func (sub *subscription) appearLocked() {
	switch has := sub.joined.Rule().Presence && sub.session.registry.presence != nil; {
	case has && !sub.present && !sub.dropped:
		sub.present = true
		sub.session.registry.presence.Joined(sub.joined.Topic(), sub.session.member())
	case !has:
		sub.disappearLocked()
	}
}

// disappearLocked ends one session's stay on the topic.
func (sub *subscription) disappearLocked() {
	if sub.present {
		sub.present = false
		sub.session.registry.presence.Left(sub.joined.Topic(), sub.session.member())
	}
}

// reappear follows a change of the topics' rules.
func (s *Session) reappear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs.all() {
		sub.appearLocked()
	}
}

func (s *Session) member() wire.Member {
	g := s.Grant()
	return wire.Member{Subject: g.Subject, Client: s.client, Claims: g.Claims}
}
