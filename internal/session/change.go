package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Change removes and adds subscriptions, all or none, also while a poll is
// parked. It returns the position of each topic or pattern in add: where it begins,
// or, if the session has it already, what the client has acked of it; and behind
// them those of the topics that the patterns stand for and the session did not
// have. The error is a *wire.Problem.
func (s *Session) Change(add []wire.Start, remove []string) ([]wire.Position, error) {
	dropped, err := s.checkChange(add, remove)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, s.ended
	}
	c := &change{session: s, dropped: dropped, positions: make([]wire.Position, 0, len(add))}
	if err := c.makeLocked(add); err != nil {
		c.undoLocked()
		return nil, err
	}
	s.removeLocked(dropped)
	c.adoptLocked()
	return append(c.positions, c.matched...), nil
}

// A change is what one Change adds: joined, but not yet the session's.
type change struct {
	session   *Session
	dropped   map[string]bool // topics and patterns to be removed
	fresh     []*subscription
	named     []*subscription // there already, by a pattern, and named now
	followed  []*following
	positions []wire.Position // of what was asked for
	matched   []wire.Position // of the topics that patterns stand for
	leaving   int             // of dropped, how many are there
}

// checkChange checks what can be checked without the lock, which fan-outs wait
// for, and returns what to remove as a set.
func (s *Session) checkChange(add []wire.Start, remove []string) (map[string]bool, error) {
	if most := s.config().Subscriptions; len(add) > most || len(remove) > most {
		return nil, s.tooMany(max(len(add), len(remove)))
	}
	asked := make(map[string]bool, len(add))
	for _, start := range add {
		if err := checkName(start.Topic); err != nil {
			return nil, err
		}
		if asked[start.Topic] {
			return nil, wire.NewProblem(wire.CodeInvalidRequest, "name it once", "topic %q is named twice", start.Topic)
		}
		asked[start.Topic] = true
	}
	dropped := make(map[string]bool, len(remove))
	for _, name := range remove {
		if err := checkName(name); err != nil {
			return nil, err
		}
		dropped[name] = true
	}
	return dropped, nil
}

func checkName(name string) error {
	if err := wire.CheckPattern(name); err != nil {
		return wire.NewProblem(wire.CodeInvalidTopic, "see PROTOCOL.md, Words", "%v", err)
	}
	return nil
}

func (s *Session) tooMany(n int) error {
	most := s.config().Subscriptions
	return wire.NewProblem(wire.CodeTooManySubscriptions,
		fmt.Sprintf("name at most %d, or raise limits.subscriptions", most),
		"%d topics are more than a session may hold", n)
}

// makeLocked joins what add names and the session does not have or is about to
// drop.
func (c *change) makeLocked(add []wire.Start) error {
	if err := c.checkRoomLocked(add); err != nil {
		return err
	}
	for _, start := range add {
		if err := c.addLocked(start); err != nil {
			return err
		}
	}
	return c.followLocked(add)
}

// checkRoomLocked holds the bound on subscriptions.
func (c *change) checkRoomLocked(add []wire.Start) error {
	s := c.session
	for name := range c.dropped {
		if s.subs[name] != nil || s.follows[name] != nil {
			c.leaving++
		}
	}
	n := -c.leaving
	for _, start := range add {
		if c.dropped[start.Topic] || s.subs[start.Topic] == nil && s.follows[start.Topic] == nil {
			n++
		}
	}
	if n <= 0 {
		return nil
	}
	return s.makeRoomLocked(n)
}

// addLocked adds what one start names, but for the topics that a pattern stands
// for.
func (c *change) addLocked(start wire.Start) error {
	s := c.session
	if wire.IsPattern(start.Topic) {
		c.positions = append(c.positions, s.in.broker.PatternPosition(strings.Clone(start.Topic)))
		return nil
	}
	if sub := s.subs[start.Topic]; sub != nil && !c.dropped[start.Topic] && sub.joined.Pin(true) {
		c.named = append(c.named, sub)
		c.positions = append(c.positions, sub.ackedTo)
		return nil
	}
	sub, err := s.join(start, true)
	if err != nil {
		return err
	}
	c.fresh = append(c.fresh, sub)
	c.positions = append(c.positions, sub.ackedTo)
	return nil
}

func (s *Session) join(start wire.Start, named bool) (*subscription, error) {
	sub := &subscription{session: s, named: named, pace: newPace(start.Every)}
	j, err := s.in.broker.Join(start, sub, named)
	if err != nil {
		return nil, err
	}
	sub.joined = j.Subscription
	sub.cursor, sub.restart, sub.behind = j.Cursor, j.Restart, !j.Live
	sub.sentTo, sub.ackedTo = j.Position, j.Position
	if j.Live {
		sub.lost = wire.GapSlow
	}
	return sub, nil
}

// undoLocked leaves what was joined.
func (c *change) undoLocked() {
	for _, f := range c.followed {
		f.dropLocked()
	}
	for _, sub := range c.fresh {
		sub.dropLocked()
	}
	for _, sub := range c.named {
		sub.joined.Pin(sub.named)
	}
}

// adoptLocked makes what was added the session's.
func (c *change) adoptLocked() {
	s := c.session
	for _, f := range c.followed {
		if s.follows == nil {
			s.follows = make(map[string]*following)
		}
		s.follows[f.pattern] = f
	}
	for _, sub := range c.named {
		sub.named = true
	}
	s.adoptLocked(c.fresh)
}

// adoptLocked makes subscriptions the session's, in the place of those whose topics
// were forgotten.
func (s *Session) adoptLocked(fresh []*subscription) {
	for _, sub := range fresh {
		s.dropTopicLocked(sub.joined.Topic())
		s.subs[sub.joined.Topic()] = sub
		if sub.behind {
			s.behind = append(s.behind, sub)
		}
	}
	s.wakeLocked()
}

// removeLocked removes topics and patterns. A topic that a pattern stands for stays
// for that; with a pattern go the topics that are there by it alone.
func (s *Session) removeLocked(names map[string]bool) {
	unfollowed := false
	for name := range names {
		if f := s.follows[name]; f != nil {
			f.dropLocked()
			delete(s.follows, name)
			unfollowed = true
		}
	}
	for name := range names {
		if sub := s.subs[name]; sub != nil && sub.named {
			s.unnameLocked(name, sub)
		}
	}
	if unfollowed {
		s.dropUnmatchedLocked()
	}
}

// dropUnmatchedLocked drops the topics that were there by a pattern alone.
func (s *Session) dropUnmatchedLocked() {
	for topic, sub := range s.subs {
		if !sub.named && !s.followsLocked(topic) {
			s.dropTopicLocked(topic)
		}
	}
}

// unnameLocked takes the client's naming from a subscription.
func (s *Session) unnameLocked(topic string, sub *subscription) {
	if !s.followsLocked(topic) {
		s.dropTopicLocked(topic)
		return
	}
	sub.named = false
	sub.joined.Pin(false)
}

// followsLocked reports whether one of the session's patterns stands for the topic.
func (s *Session) followsLocked(topic string) bool {
	for pattern := range s.follows {
		if wire.Matches(pattern, topic) {
			return true
		}
	}
	return false
}

// dropTopicLocked drops the subscription to a topic, if there is one.
func (s *Session) dropTopicLocked(topic string) {
	sub := s.subs[topic]
	if sub == nil {
		return
	}
	sub.dropLocked()
	delete(s.subs, topic)
	s.behind = slices.DeleteFunc(s.behind, func(b *subscription) bool { return b == sub })
}
