package session

import (
	"fmt"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A following is one pattern of one session: every topic that it stands for, also
// those to come, has a subscription. Those do not keep their topics from being
// forgotten once the client has had all of them, and go with them. The session's mu
// guards it.
type following struct {
	session *Session      // immutable
	pattern string        // immutable
	every   time.Duration // of its topics, see pace; immutable
	dropped bool

	// told is the position that the client has, and tells of topics that were made and
	// forgotten while it was away, as a topic's tells of its messages.
	told *subscription
}

// maxPatterns bounds the patterns of a session: each is looked up when the session
// changes, while fan-outs to it wait. A beside has a bit for each.
const maxPatterns = 64

// Made implements broker.Follower: a topic gets its first message.
func (f *following) Made(topic string) {
	s := f.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.dropped || s.ended != nil || !s.lacksLocked(topic) {
		return
	}
	if err := s.checkRoomLocked(1); err != nil {
		s.in.endLocked(s, tooManyMade(f.pattern, s.config().Subscriptions), EndedTopics)
		return
	}
	sub, there, err := s.joinMatching(wire.Start{Topic: topic, Every: s.everyLocked(topic)}, true)
	switch {
	case err != nil:
		s.in.endLocked(s, cannotFollow(f.pattern, err), EndedTopics)
	case there:
		s.adoptLocked([]*subscription{sub})
	}
}

func tooManyMade(pattern string, most int) *wire.Problem {
	return wire.NewProblem(wire.CodeSessionEnded, fmt.Sprintf("open sessions for parts of the pattern, or raise limits.subscriptions (%d)", most),
		"more topics were made that match %q than a session may hold", pattern)
}

func cannotFollow(pattern string, err error) *wire.Problem {
	return wire.NewProblem(wire.CodeSessionEnded, "open a session from your positions, later",
		"a topic that matches %q could not be subscribed to: %v", pattern, err)
}

// lacksLocked reports whether the session has no subscription to the topic. One whose
// topic was forgotten goes at once.
func (s *Session) lacksLocked(topic string) bool {
	sub := s.subs[topic]
	if sub != nil && sub.joined.Gone() {
		s.dropTopicLocked(topic)
		return true
	}
	return sub == nil
}

// everyLocked is the pace of a topic that is there by patterns: that of the most
// specific.
func (s *Session) everyLocked(topic string) time.Duration {
	var best *following
	for pattern, f := range s.follows {
		if wire.Matches(pattern, topic) && (best == nil || wire.MoreSpecific(pattern, best.pattern)) {
			best = f
		}
	}
	if best == nil {
		return 0
	}
	return best.every
}

// settleLocked lets the topic be forgotten as far as the client has had it. A
// subscription of its own that the client named keeps it anyway.
func (sub *subscription) settleLocked() {
	if !sub.named && !sub.behind && sub.ackedTo.Offset >= sub.last && sub.ackedTo.Epoch == sub.session.in.broker.Epoch() {
		sub.joined.Settle(sub.cursor)
	}
}

func (f *following) dropLocked() {
	f.dropped = true
	f.session.in.broker.Unfollow(f.pattern, f)
	f.told.dropped = true
}

// positionLocked is what the client is to resume from: what it has of what was
// forgotten, or, if it was told all of that, as of now.
func (f *following) positionLocked() wire.Position {
	if f.told.behind || f.told.sentTo != f.told.ackedTo {
		return f.told.ackedTo
	}
	return f.session.in.broker.PatternPosition(f.pattern)
}

// follow follows the pattern that a start names, and joins the topics that there
// are.
func (c *change) follow(start wire.Start) (*following, error) {
	s, b := c.session, c.session.in.broker
	f := &following{session: s, pattern: strings.Clone(start.Topic), every: start.Every, told: &subscription{session: s}}
	if err := b.Follow(f.pattern, f); err != nil { // before looking: what is made from now on is told
		return nil, err
	}
	c.followed = append(c.followed, f)
	topics, ok := b.Matching(f.pattern, c.search)
	if !ok {
		return nil, tooBroad(f.pattern, s.config().Subscriptions)
	}
	for _, topic := range topics {
		if err := c.joinTopic(topic, start); err != nil {
			return nil, err
		}
	}
	now := b.PatternPosition(f.pattern) // after joining: what is forgotten from then on, the client has had
	*f.told = subscription{session: s, epoch: now.Epoch, cursor: now.Offset, sentTo: now, ackedTo: now}
	restarted := false
	if start.From == wire.FromPosition {
		restarted = c.resume(f, wire.Position{Topic: f.pattern, Epoch: strings.Clone(start.Epoch), Offset: start.After}, now)
	}
	f.told.joined = b.Detached(now, restarted)
	return f, nil
}

func tooBroad(pattern string, most int) *wire.Problem {
	return wire.NewProblem(wire.CodeTooManySubscriptions, fmt.Sprintf("name more of its tokens, the first above all, or raise limits.subscriptions (%d)", most),
		"%q matches more topics than a session may hold, or too many have to be looked at", pattern)
}

// resume announces what was lost since the client's position, if anything. restarted
// says that the position means nothing now.
func (c *change) resume(f *following, position, now wire.Position) (restarted bool) {
	restarted = position.Epoch != now.Epoch || position.Offset > now.Offset
	if restarted || c.session.in.broker.ForgottenSince(position, c.had, c.search) {
		f.told.sentTo, f.told.ackedTo = position, position
		f.told.cursor, f.told.behind = min(position.Offset, now.Offset), true
	}
	return restarted
}

// joinTopic joins a topic, if the session lacks it, that a new pattern stands for. If
// the pattern is resumed, the topic is new to the client: it begins where the topic
// does, unless that is of another epoch.
func (c *change) joinTopic(topic string, start wire.Start) error {
	s := c.session
	if c.joined[topic] || c.leaving[topic] == nil && !s.lacksLocked(topic) {
		return nil
	}
	start.Topic = topic
	born := start.From == wire.FromPosition && start.Epoch == s.in.broker.Epoch()
	if start.From == wire.FromPosition {
		start.From = wire.FromOldest
	}
	if err := c.checkRoomLocked(); err != nil {
		return err
	}
	sub, there, err := s.joinMatching(start, born)
	if err == nil && there {
		c.add(sub)
		c.matched = append(c.matched, sub.ackedTo)
	}
	return err
}

// joinMatching joins a topic that there is for a pattern.
func (s *Session) joinMatching(start wire.Start, born bool) (sub *subscription, there bool, err error) {
	sub = newSubscription(s, start, false)
	j, there, err := s.in.broker.JoinIfThere(start, born, sub)
	if there {
		sub.begin(j)
	}
	return sub, there, err
}

var _ broker.Follower = (*following)(nil)
