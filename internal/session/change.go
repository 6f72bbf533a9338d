package session

import (
	"fmt"
	"slices"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Change removes and adds subscriptions, all or none, also while a poll is
// parked. It returns the position of each topic or pattern in add: where it begins,
// or, if the session has it already, what the client has acked of it; and behind
// them those of the topics that the patterns stand for and the session did not
// have. The error is a *wire.Problem.
func (s *Session) Change(add []wire.Start, remove []string) ([]wire.Position, error) {
	if err := s.checkChange(add, remove); err != nil {
		return nil, err
	}
	beside := besides(add)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, s.ended
	}
	c := s.planLocked(add, remove)
	c.beside = beside
	if err := c.makeLocked(add); err != nil {
		c.undoLocked()
		return nil, err
	}
	c.adoptLocked()
	return append(c.positions, c.matched...), nil
}

// A change is what one Change does. What leaves stays until all that is added is
// joined.
type change struct {
	session *Session

	// The plan: see planLocked.
	kept     map[string]*following    // patterns that stay
	leaving  map[string]*subscription // by topic
	unnamed  []*subscription          // stay, but only by a pattern
	patterns []string                 // that stay or come
	beside   beside
	had      map[string]uint64 // offsets of this epoch that the client names

	// What was joined.
	search    *broker.Search
	fresh     []*subscription
	joined    map[string]bool // their topics
	followed  []*following
	positions []wire.Position // of what was asked for
	matched   []wire.Position // of the topics that patterns stand for
}

// checkChange checks what can be checked without the lock, which fan-outs wait
// for.
func (s *Session) checkChange(add []wire.Start, remove []string) error {
	patterns := 0
	asked := make(map[string]bool, len(add))
	for _, start := range add {
		if err := checkName(start.Topic); err != nil {
			return err
		}
		if asked[start.Topic] {
			return wire.NewProblem(wire.CodeInvalidRequest, "name it once", "topic %q is named twice", start.Topic)
		}
		asked[start.Topic] = true
		if wire.IsPattern(start.Topic) {
			patterns++
		}
	}
	if patterns > maxPatterns {
		return tooManyPatterns(patterns)
	}
	most := s.config().Subscriptions
	if patterns > 0 {
		most *= namedForPatterns
	}
	if n := max(len(add), len(remove)); n > most {
		return s.tooMany(n)
	}
	for _, name := range remove {
		if err := checkName(name); err != nil {
			return err
		}
	}
	return nil
}

// namedForPatterns is how many times as many topics as a session holds may be named
// beside a pattern: a client may have met many that were forgotten since.
const namedForPatterns = 4

func tooManyPatterns(n int) *wire.Problem {
	return wire.NewProblem(wire.CodeTooManySubscriptions, fmt.Sprintf("name at most %d, or open more sessions", maxPatterns),
		"%d patterns are more than a session may hold", n)
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

// planLocked says what leaves. Removals come first: what is named in both, or is
// there by a pattern that is removed, leaves and begins anew. A topic that was named
// stays without its name if a pattern stands for it.
func (s *Session) planLocked(add []wire.Start, remove []string) *change {
	added := make(map[string]bool, len(add))
	for _, start := range add {
		added[start.Topic] = true
	}
	c := &change{session: s, kept: make(map[string]*following), leaving: make(map[string]*subscription), had: make(map[string]uint64), joined: make(map[string]bool), search: broker.NewSearch(s.config().Subscriptions), positions: make([]wire.Position, 0, len(add))}
	for pattern, f := range s.follows {
		if !slices.Contains(remove, pattern) {
			c.kept[pattern] = f
			c.patterns = append(c.patterns, pattern)
		}
	}
	kept := len(c.patterns)
	c.planAdd(add)
	for _, name := range remove {
		sub := s.subs[name]
		switch {
		case sub == nil || !sub.named:
		case !added[name] && matches(c.patterns[:kept], name):
			c.unnamed = append(c.unnamed, sub)
		default:
			c.leaving[name] = sub
		}
	}
	if kept < len(s.follows) {
		c.planUnmatchedLocked(c.patterns[:kept])
	}
	return c
}

// planAdd notes what the patterns in add go by.
func (c *change) planAdd(add []wire.Start) {
	for _, start := range add {
		switch {
		case wire.IsPattern(start.Topic) && c.kept[start.Topic] == nil:
			c.patterns = append(c.patterns, start.Topic)
		case start.From == wire.FromPosition && start.Epoch == c.session.in.broker.Epoch():
			c.had[start.Topic] = start.After
		}
	}
}

// planUnmatchedLocked has the topics leave that were there by a pattern alone, which
// is removed.
func (c *change) planUnmatchedLocked(kept []string) {
	for topic, sub := range c.session.subs {
		if !sub.named && !matches(kept, topic) {
			c.leaving[topic] = sub
		}
	}
}

func matches(patterns []string, topic string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return wire.Matches(pattern, topic) })
}

// makeLocked joins what add names and the session does not have, or is about to
// drop.
func (c *change) makeLocked(add []wire.Start) error {
	if n := len(c.patterns); n > maxPatterns {
		return tooManyPatterns(n)
	}
	for i, start := range add {
		if err := c.addLocked(i, start); err != nil {
			return err
		}
	}
	for i, start := range add { // after what was named, which begins where it says
		if !wire.IsPattern(start.Topic) || c.kept[start.Topic] != nil {
			continue
		}
		f, err := c.follow(start)
		if err != nil {
			return err
		}
		c.positions[i] = f.told.ackedTo
	}
	return nil
}

// addLocked adds what one start names, but for the topics that a pattern stands
// for.
func (c *change) addLocked(i int, start wire.Start) error {
	s := c.session
	if wire.IsPattern(start.Topic) {
		position := wire.Position{} // see makeLocked
		if f := c.kept[start.Topic]; f != nil {
			position = f.positionLocked()
		}
		c.positions = append(c.positions, position)
		return nil
	}
	if c.leaving[start.Topic] == nil && !s.lacksLocked(start.Topic) {
		c.positions = append(c.positions, s.subs[start.Topic].ackedTo)
		return nil
	}
	if err := c.checkRoomLocked(); err != nil {
		return err
	}
	if c.tellsOf(i, start) {
		return c.addMatched(start)
	}
	sub, err := s.join(start, !matches(c.patterns, start.Topic))
	if err != nil {
		return err
	}
	c.add(sub)
	c.positions = append(c.positions, sub.ackedTo)
	return nil
}

// tellsOf reports whether a pattern that is resumed tells of what was lost of the
// topic that is the i-th to be added, should that be forgotten: of this epoch, or with
// it of another.
func (c *change) tellsOf(i int, start wire.Start) bool {
	epoch := c.session.in.broker.Epoch()
	for n, pattern := range c.beside.resumed {
		tells := c.beside.matches[i]&(1<<n) != 0 && c.kept[pattern.Topic] == nil
		if tells && (start.From != wire.FromPosition || start.Epoch == epoch || pattern.Epoch != epoch) {
			return true
		}
	}
	return false
}

// A beside says which topics that are added stand beside patterns that match them. It
// is made without the lock: it is the most that a change may cost, and fan-outs would
// wait for it.
type beside struct {
	resumed []wire.Start // patterns that come from a position, at most maxPatterns
	matches []uint64     // for each that is added, a bit for each of those that stand for it
}

func besides(add []wire.Start) (b beside) {
	for _, start := range add {
		if wire.IsPattern(start.Topic) && start.From == wire.FromPosition {
			b.resumed = append(b.resumed, start)
		}
	}
	if b.resumed == nil {
		return b
	}
	b.matches = make([]uint64, len(add))
	for i, start := range add {
		for n, pattern := range b.resumed {
			if wire.Matches(pattern.Topic, start.Topic) {
				b.matches[i] |= 1 << n
			}
		}
	}
	return b
}

// addMatched joins a topic that is named beside a pattern that is resumed. One that
// was forgotten is not made again for that: if something was lost with it the pattern
// tells so, and whatever is to come is new.
func (c *change) addMatched(start wire.Start) error {
	sub, there, err := c.session.joinMatching(start, false)
	if err != nil {
		return err
	}
	position := wire.Position{Topic: start.Topic, Epoch: c.session.in.broker.Epoch()}
	if there {
		c.add(sub)
		position = sub.ackedTo
	}
	c.positions = append(c.positions, position)
	return nil
}

func (c *change) add(sub *subscription) {
	c.fresh = append(c.fresh, sub)
	c.joined[sub.joined.Topic()] = true
}

// checkRoomLocked holds the bound on subscriptions for one more.
func (c *change) checkRoomLocked() error {
	s := c.session
	return s.checkRoomLocked(len(c.fresh) + 1 - len(c.leaving) + len(c.patterns) - len(s.follows))
}

// checkRoomLocked returns an error unless so many subscriptions may be added.
func (s *Session) checkRoomLocked(n int) error {
	if n += len(s.subs) + len(s.follows); n > s.config().Subscriptions {
		return s.tooMany(n)
	}
	return nil
}

// join joins a topic, which is made if need be.
func (s *Session) join(start wire.Start, named bool) (*subscription, error) {
	sub := newSubscription(s, start, named)
	j, err := s.in.broker.Join(start, sub, named)
	if err != nil {
		return nil, err
	}
	sub.begin(j)
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
}

// adoptLocked lets go of what leaves, and makes what was added the session's.
func (c *change) adoptLocked() {
	s := c.session
	for pattern, f := range s.follows {
		if c.kept[pattern] == nil {
			f.dropLocked()
			delete(s.follows, pattern)
		}
	}
	for topic := range c.leaving {
		s.dropTopicLocked(topic)
	}
	for _, sub := range c.unnamed {
		sub.named = false
		sub.joined.Pin(false)
		sub.settleLocked()
	}
	for _, f := range c.followed {
		s.followLocked(f)
	}
	s.adoptLocked(c.fresh)
}

func (s *Session) followLocked(f *following) {
	if s.follows == nil {
		s.follows = make(map[string]*following)
	}
	s.follows[f.pattern] = f
	if f.told.behind {
		s.notices = append(s.notices, f.told)
	}
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
	s.notices = slices.DeleteFunc(s.notices, func(told *subscription) bool { return told.dropped })
	s.wakeLocked()
}

// dropTopicLocked drops the subscription to a topic, if there is one.
func (s *Session) dropTopicLocked(topic string) {
	sub := s.subs[topic]
	if sub == nil {
		return
	}
	sub.dropLocked()
	delete(s.subs, topic)
	if sub.behind {
		s.behind = slices.DeleteFunc(s.behind, func(b *subscription) bool { return b == sub })
	}
}
