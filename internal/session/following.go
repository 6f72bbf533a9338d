package session

import (
	"fmt"
	"strings"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A following is one pattern of one session: every topic that it stands for, also
// those to come, has a subscription. Those do not keep their topics from being
// forgotten; one whose topic was is replaced when the topic is made again. The
// session's mu guards it.
type following struct {
	session *Session // immutable
	pattern string   // immutable
	start   wire.Start
	dropped bool
}

// Made implements broker.Follower: a topic is about to get its first message.
func (f *following) Made(topic string) {
	s := f.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.dropped || s.ended != nil || !s.lacksLocked(topic) {
		return
	}
	if err := s.makeRoomLocked(1); err != nil {
		s.in.endLocked(s, tooManyMade(f.pattern, s.config().Subscriptions), EndedTopics)
		return
	}
	sub, err := s.join(wire.Start{Topic: topic, Every: f.start.Every}, false)
	if err != nil {
		s.in.endLocked(s, cannotFollow(f.pattern, err), EndedTopics)
		return
	}
	s.adoptLocked([]*subscription{sub})
}

func tooManyMade(pattern string, most int) *wire.Problem {
	return wire.NewProblem(wire.CodeSessionEnded, fmt.Sprintf("open sessions for parts of the pattern, or raise limits.subscriptions (%d)", most),
		"more topics were made that match %q than a session may hold", pattern)
}

func cannotFollow(pattern string, err error) *wire.Problem {
	return wire.NewProblem(wire.CodeSessionEnded, "open a session from your positions, later",
		"a topic that matches %q could not be subscribed to: %v", pattern, err)
}

// lacksLocked reports whether the session has no subscription to the topic, or one
// whose topic was forgotten.
func (s *Session) lacksLocked(topic string) bool {
	sub := s.subs[topic]
	return sub == nil || sub.joined.Gone()
}

// makeRoomLocked makes sure that so many subscriptions may be added, if need be by
// letting go of those whose topics were forgotten.
func (s *Session) makeRoomLocked(n int) error {
	most := s.config().Subscriptions - len(s.follows)
	if len(s.subs)+n <= most {
		return nil
	}
	for topic, sub := range s.subs {
		if !sub.named && sub.joined.Gone() {
			s.dropTopicLocked(topic)
		}
	}
	if n += len(s.subs); n > most {
		return s.tooMany(n + len(s.follows))
	}
	return nil
}

func (f *following) dropLocked() {
	f.dropped = true
	f.session.in.broker.Unfollow(f.pattern, f)
}

// startOf returns where a topic that the pattern stands for begins.
func (f *following) startOf(topic string) wire.Start {
	start := f.start
	start.Topic = topic
	return start
}

// followLocked follows the patterns in add, and joins the topics that they stand
// for, as far as the session lacks them. It must come after what add names. If a
// topic cannot be joined, nothing is followed.
func (c *change) followLocked(add []wire.Start) error {
	s := c.session
	for _, start := range add {
		if !wire.IsPattern(start.Topic) || s.follows[start.Topic] != nil && !c.dropped[start.Topic] {
			continue
		}
		f := &following{session: s, pattern: strings.Clone(start.Topic), start: start}
		s.in.broker.Follow(f.pattern, f) // before looking: what is made from now on is told
		c.followed = append(c.followed, f)
		if err := c.joinMatching(f); err != nil {
			return err
		}
	}
	return nil
}

// joinMatching joins the topics that there are.
func (c *change) joinMatching(f *following) error {
	s := c.session
	joined := make(map[string]bool, len(c.fresh))
	for _, sub := range c.fresh {
		joined[sub.joined.Topic()] = true
	}
	for _, topic := range s.in.broker.Matching(f.pattern, s.config().Subscriptions+1) {
		if joined[topic] || !c.dropped[topic] && !s.lacksLocked(topic) {
			continue
		}
		if err := s.makeRoomLocked(len(c.fresh) + 1 + len(c.followed) - c.leaving); err != nil {
			return err
		}
		sub, err := s.join(f.startOf(topic), false)
		if err != nil {
			return err
		}
		c.fresh = append(c.fresh, sub)
		c.matched = append(c.matched, sub.ackedTo)
	}
	return nil
}

var _ broker.Follower = (*following)(nil)
