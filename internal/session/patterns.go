package session

import (
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A pattern is a session's subscription to a pattern: each topic that matches, also a
// later one, gets a subscription without a name. Such a subscription does not keep its
// topic from being forgotten once the client has all messages, and ends with the topic.
// The session's mu guards the fields that are not immutable.
type pattern struct {
	session *Session      // immutable
	name    string        // immutable
	every   time.Duration // pace of its topics; immutable
	dropped bool

	// notice has the client's position, and announces topics that were created and
	// forgotten while the client was away, as a topic's subscription announces a gap.
	notice subscription
}

var _ broker.Follower = (*pattern)(nil)

// Made implements broker.Follower: a topic gets its first message.
func (p *pattern) Made(topic string) {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.dropped || s.ended != nil || !s.unsubscribedLocked(topic) || s.forbidden().Find(topic) != nil {
		return
	}
	start, best := s.startLocked(topic)
	var sub *subscription
	// A stateless poll may have left out this topic before it was forgotten, and have no space for the
	// gap that says so. The next poll begins with the first message in the history.
	fits := s.fitsLocked(topic, 0) && (s.number != 0 || s.unfollowedLocked() == 0)
	if fits {
		var err error
		sub, err = s.joinExisting(start, true)
		fits = err == nil // else the daemon has no room for it
	}
	switch {
	case sub != nil:
		s.adoptLocked(sub)
	case !fits && p == best: // each of its patterns is called
		s.leaveOutLocked(p, topic)
	}
}

// joinExisting joins a topic for a pattern. It returns nil if the topic does not exist.
// With born the subscription starts at the topic's first message.
func (s *Session) joinExisting(start wire.Start, born bool) (*subscription, error) {
	sub := newSubscription(s, start, false)
	j, exists, err := s.registry.broker.JoinIfThere(start, born, sub)
	if err != nil || !exists {
		return nil, err
	}
	sub.begin(j)
	return sub, nil
}

func (p *pattern) dropLocked() {
	p.dropped, p.notice.dropped = true, true
	p.session.registry.broker.Unfollow(p.name, p)
}

// positionLocked returns where the client resumes: at what it acked of the notice or, if
// nothing of that is left, at the present.
func (p *pattern) positionLocked() wire.Position {
	if p.notice.behind || p.notice.sentTo != p.notice.ackedTo {
		return p.notice.ackedTo
	}
	return p.session.registry.broker.PatternPosition(p.name)
}

// followLocked follows a new pattern, joins the topics that it matches, and prepares a
// notice of what the client has lost since its position.
func (c *change) followLocked(p *pattern, start wire.Start) error {
	s, b := c.session, c.session.registry.broker
	if err := b.Follow(p.name, p); err != nil { // before Matching: later topics call Made
		return err
	}
	topics, ok := b.Matching(p.name, c.search)
	switch {
	case ok:
	case len(c.leftOut) > 0 || s.unfollowedLocked() > 0: // some do not fit in any case
		c.leaveOutLocked(p.name, p)
	default:
		return problem.New(wire.CodeTooManySubscriptions,
			"use a more specific pattern, especially in its first segment, or raise limits.pattern_bytes",
			"too many topics must be searched for those that match pattern %s", wire.Quote(p.name))
	}
	for _, topic := range topics {
		if err := c.joinMatchedLocked(p, topic, start); err != nil {
			return err
		}
	}
	now := b.PatternPosition(p.name) // after joining: the client gets all of what is forgotten later
	p.notice = subscription{session: s, epoch: now.Epoch, cursor: now.Offset, sentTo: now, ackedTo: now}
	restarted := false
	if start.From == wire.FromPosition {
		given := wire.Position{Topic: p.name, Epoch: strings.Clone(start.Epoch), Offset: start.After}
		restarted = given.Epoch != now.Epoch || given.Offset > now.Offset
		if restarted || b.ForgottenSince(given, c.had, c.search) {
			p.notice.sentTo, p.notice.ackedTo = given, given
			p.notice.cursor, p.notice.behind = min(given.Offset, now.Offset), true
			c.notices = append(c.notices, notice{sub: &p.notice})
		}
	}
	p.notice.joined = b.Detached(now, restarted)
	return nil
}
