package session

import (
	"maps"
	"slices"
	"strings"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Change removes and adds subscriptions, all or none, also while a poll is parked.
// Removals come first: a name in both lists starts anew. Change returns a position for
// each name in add: where it starts or, if the session already has it, what the client
// has acked of it. The positions of new topics that the patterns match follow. The
// error is a *wire.Problem.
//
// Change asks allowed whether the session's grant permits each name in add, and refuses the
// change if it does not. Nil: the caller knows that it does. allowed must not block.
func (s *Session) Change(add []wire.Start, remove []string, allowed func(g *auth.Grant, name string) bool) ([]wire.Position, error) {
	if p := s.registry.presence; p != nil {
		defer p.Flush() // after the lock
	}
	c := &change{
		session: s, add: add, added: make(map[string]bool, len(add)),
		leaving: make(map[string]bool), joined: make(map[string]bool), had: make(map[string]uint64),
		search: broker.NewSearch(s.registry.cfg.Load().Subscriptions), positions: make([]wire.Position, len(add)),
	}
	if err := c.check(remove); err != nil {
		return nil, err
	}
	c.matchResumed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, s.ended
	}
	c.forbidden = s.forbidden()
	if err := c.forbidden.CheckStarts(add); err != nil { // while the names are joined: Forbid waits, and then ends what it forbids
		return nil, err
	}
	g := s.grant.Load() // while the names are joined: Renew waits, and then ends what it does not permit
	for _, start := range add {
		if allowed != nil && !allowed(g, start.Topic) {
			return nil, problem.New(wire.CodeForbidden, `renew the session first: send PATCH or {"auth":"…"} with a newer token`,
				"the session's current token does not permit subscribing to %s", wire.Quote(start.Topic))
		}
	}
	c.planLocked(remove)
	if err := c.joinLocked(); err != nil {
		for _, p := range c.patterns {
			if c.isNew(p) {
				p.dropLocked()
			}
		}
		for _, sub := range c.fresh {
			sub.dropLocked()
		}
		return nil, err
	}
	c.commitLocked()
	return append(c.positions, c.matched...), nil
}

// A change is the transaction of one Change. Subscriptions that it removes stay until
// it has joined all that it adds.
type change struct {
	session *Session
	add     []wire.Start
	added   map[string]bool // names in add

	forbidden auth.Prohibitions // to the session's subject

	// Set by matchResumed.
	covers [][]wire.Start // for each of add, the patterns that match it and resume from a position

	// The plan.
	patterns map[string]*pattern // those that the session will have; the new ones differ from its present ones
	leaving  map[string]bool     // topics
	unnamed  []*subscription     // stay, but only because a pattern matches them
	had      map[string]uint64   // offsets of this epoch that the client names, by topic

	// Set by joinLocked.
	search    *broker.Search
	fresh     []*subscription
	joined    map[string]bool // topics of fresh
	notices   []notice        // of new patterns that have a gap to announce
	positions []wire.Position // by index in add
	matched   []wire.Position // of topics that were joined only for a pattern
}

// maxPatterns bounds the patterns of a session: a change matches topics against all of
// them while fan-outs wait. change.covers has a bit for each.
const maxPatterns = auth.MaxPatterns

// namedForPatterns is how many times Config.Subscriptions a client may name when it
// resumes patterns: since its last poll the server may have forgotten many of its topics.
const namedForPatterns = 4

// check checks everything that needs no lock.
func (c *change) check(remove []string) error {
	patterns := 0
	for _, start := range c.add {
		if err := checkName(start.Topic); err != nil {
			return err
		}
		if c.added[start.Topic] {
			return problem.New(wire.CodeInvalidRequest, "list each topic once", "topic %s is listed twice", wire.Quote(start.Topic))
		}
		c.added[start.Topic] = true
		if wire.IsPattern(start.Topic) {
			patterns++
		}
	}
	if patterns > maxPatterns {
		return tooManyPatterns(patterns)
	}
	most := c.session.registry.cfg.Load().Subscriptions
	if patterns > 0 {
		most *= namedForPatterns
	}
	if n := max(len(c.add), len(remove)); n > most {
		return c.session.tooMany(n)
	}
	for _, name := range remove {
		if err := checkName(name); err != nil {
			return err
		}
	}
	return nil
}

func checkName(name string) error {
	if err := wire.CheckPattern(name); err != nil {
		return problem.New(wire.CodeInvalidTopic, "see PROTOCOL.md for the rules of names", "%v", err)
	}
	return nil
}

func tooManyPatterns(n int) error {
	return problem.New(wire.CodeTooManySubscriptions, "use fewer patterns, or open more sessions",
		"a session can have at most %d patterns; got %d", maxPatterns, n)
}

func (s *Session) tooMany(n int) error {
	return problem.New(wire.CodeTooManySubscriptions, "subscribe to fewer topics, or raise limits.subscriptions",
		"a session can have at most %d subscriptions; got %d", s.registry.cfg.Load().Subscriptions, n)
}

// matchResumed matches the names in add against the resumed patterns. It is the most
// expensive part of a change, so it runs without the lock.
func (c *change) matchResumed() {
	for _, p := range c.add {
		if !wire.IsPattern(p.Topic) || p.From != wire.FromPosition {
			continue
		}
		if c.covers == nil {
			c.covers = make([][]wire.Start, len(c.add))
		}
		for i, start := range c.add {
			if wire.Matches(p.Topic, start.Topic) {
				c.covers[i] = append(c.covers[i], p)
			}
		}
	}
}

// planLocked decides what leaves, and which patterns are new. A named topic that is removed
// stays, unnamed, if a remaining pattern matches it. The topics of a removed pattern leave
// unless they are named or another pattern matches them.
func (c *change) planLocked(remove []string) {
	s := c.session
	c.patterns = maps.Clone(s.patterns)
	for _, name := range remove {
		delete(c.patterns, name)
	}
	for _, name := range remove {
		sub := s.subs.get(name)
		switch {
		case sub == nil || !sub.named:
		case !c.added[name] && anyMatches(c.patterns, name):
			c.unnamed = append(c.unnamed, sub)
		default:
			c.leaving[name] = true
		}
	}
	if len(c.patterns) < len(s.patterns) {
		for topic, sub := range s.subs.all() {
			if !sub.named && !anyMatches(c.patterns, topic) {
				c.leaving[topic] = true
			}
		}
	}
	for _, start := range c.add {
		switch {
		case wire.IsPattern(start.Topic):
			if c.patterns == nil {
				c.patterns = make(map[string]*pattern)
			}
			if c.patterns[start.Topic] == nil {
				name := strings.Clone(start.Topic) // the original would keep the whole request
				c.patterns[name] = &pattern{session: s, name: name, every: start.Every}
			}
		case start.From == wire.FromPosition && start.Epoch == s.registry.broker.Epoch(start.Topic):
			c.had[start.Topic] = start.After
		}
	}
}

// anyMatches reports whether one of the patterns matches the topic.
func anyMatches(patterns map[string]*pattern, topic string) bool {
	for name := range patterns {
		if wire.Matches(name, topic) {
			return true
		}
	}
	return false
}

func (c *change) isNew(p *pattern) bool { return p != nil && c.session.patterns[p.name] != p }

// joinLocked joins what is new: first the topics in add, each where it says, then the
// topics that the new patterns match.
func (c *change) joinLocked() error {
	if n := len(c.patterns); n > maxPatterns {
		return tooManyPatterns(n)
	}
	for i, start := range c.add {
		var err error
		if p := c.patterns[start.Topic]; p == nil {
			c.positions[i], err = c.joinNamedLocked(i, start)
		} else if !c.isNew(p) {
			c.positions[i] = p.positionLocked()
		}
		if err != nil {
			return err
		}
	}
	for i, start := range c.add {
		if p := c.patterns[start.Topic]; c.isNew(p) {
			if err := c.followLocked(p, start); err != nil {
				return err
			}
			c.positions[i] = p.notice.ackedTo
		}
	}
	return nil
}

// joinNamedLocked joins the i-th topic in add, unless the session has it, and returns
// its position. A forgotten topic is not created again if a resumed pattern covers it:
// the pattern announces any loss, and all later messages are new.
func (c *change) joinNamedLocked(i int, start wire.Start) (wire.Position, error) {
	s := c.session
	if c.hasLocked(start.Topic) {
		return s.subs.get(start.Topic).ackedTo, nil
	}
	if c.forbidden.Find(start.Topic) != nil { // a pattern matches it, and leaves it out: the client keeps its position
		return wire.Position{Topic: strings.Clone(start.Topic), Epoch: strings.Clone(start.Epoch), Offset: start.After}, nil
	}
	forgotten := wire.Position{Topic: start.Topic, Epoch: s.registry.broker.Epoch(start.Topic)}
	isCovered := c.isCovered(i, start)
	if isCovered && !s.registry.broker.Has(start.Topic) { // it takes no room
		return forgotten, nil
	}
	if err := c.checkRoomLocked(); err != nil {
		return wire.Position{}, err
	}
	if isCovered {
		sub, err := s.joinExisting(start, false)
		if sub == nil {
			return forgotten, err
		}
		return c.addFresh(sub), nil
	}
	sub := newSubscription(s, start, !anyMatches(c.patterns, start.Topic))
	j, err := s.registry.broker.Join(start, sub, sub.named)
	if err != nil {
		return wire.Position{}, err
	}
	sub.begin(j)
	return c.addFresh(sub), nil
}

// isCovered reports whether a resumed pattern announces what the client lost of the
// i-th topic in add if that was forgotten.
func (c *change) isCovered(i int, start wire.Start) bool {
	b := c.session.registry.broker
	if c.covers == nil {
		return false
	}
	for _, p := range c.covers[i] {
		if c.isNew(c.patterns[p.Topic]) && b.Covers(p, start) {
			return true
		}
	}
	return false
}

// joinMatchedLocked joins a topic that a new pattern matches, unless the session has it.
// For a resumed pattern the topic is new to the client and starts at its first message,
// or at the oldest one held if the client's position is of another epoch. An ephemeral topic
// starts now.
func (c *change) joinMatchedLocked(topic string, start wire.Start) error {
	if c.joined[topic] || c.hasLocked(topic) || c.forbidden.Find(topic) != nil {
		return nil
	}
	if err := c.checkRoomLocked(); err != nil {
		return err
	}
	b := c.session.registry.broker
	born := start.From == wire.FromPosition && start.Epoch == b.Epoch(start.Topic) && !b.IsEphemeral(topic)
	if start.From == wire.FromPosition {
		start.From = wire.FromOldest
	}
	start.Topic = topic
	sub, err := c.session.joinExisting(start, born)
	if sub != nil {
		c.matched = append(c.matched, c.addFresh(sub))
	}
	return err
}

// hasLocked reports whether the session has the topic and keeps it.
func (c *change) hasLocked(topic string) bool {
	return !c.leaving[topic] && !c.session.unsubscribedLocked(topic)
}

// checkRoomLocked returns an error if the session may not have another subscription.
func (c *change) checkRoomLocked() error {
	return c.session.checkRoomLocked(len(c.fresh) + 1 - len(c.leaving) + len(c.patterns) - len(c.session.patterns))
}

// addFresh adds a new subscription and returns where it starts.
func (c *change) addFresh(sub *subscription) wire.Position {
	c.fresh = append(c.fresh, sub)
	c.joined[sub.joined.Topic()] = true
	return sub.ackedTo
}

// commitLocked drops what leaves and gives the session what was joined.
func (c *change) commitLocked() {
	s := c.session
	for name, p := range s.patterns {
		if c.patterns[name] != p {
			p.dropLocked()
		}
	}
	s.patterns = c.patterns
	for topic := range c.leaving {
		s.dropTopicLocked(topic)
	}
	for _, sub := range c.unnamed {
		sub.named = false
		sub.joined.Pin(false)
		sub.releaseTopicLocked()
	}
	s.notices = slices.DeleteFunc(append(s.notices, c.notices...), func(n notice) bool { return n.sub.dropped })
	s.adoptLocked(c.fresh...)
}

// checkRoomLocked returns an error if the session may not have n more subscriptions.
func (s *Session) checkRoomLocked(n int) error {
	if n += s.subs.len() + len(s.patterns); n > s.registry.cfg.Load().Subscriptions {
		return s.tooMany(n)
	}
	return nil
}

// adoptLocked adds joined subscriptions to the session. They replace those whose topics
// were forgotten.
func (s *Session) adoptLocked(fresh ...*subscription) {
	for _, sub := range fresh {
		s.dropTopicLocked(sub.joined.Topic())
		s.subs.put(sub)
		sub.appearLocked()
		if sub.behind {
			s.behind = append(s.behind, sub)
		}
	}
	s.wakeLocked()
}

// dropTopicLocked drops the subscription to a topic, if the session has one.
func (s *Session) dropTopicLocked(topic string) {
	sub := s.subs.get(topic)
	if sub == nil {
		return
	}
	sub.dropLocked()
	s.subs.remove(topic)
	if sub.behind {
		s.behind = slices.DeleteFunc(s.behind, func(b *subscription) bool { return b == sub })
	}
}

// unsubscribedLocked reports whether the session has no subscription to the topic. It
// drops one whose topic was forgotten.
func (s *Session) unsubscribedLocked(topic string) bool {
	sub := s.subs.get(topic)
	if sub != nil && sub.joined.Gone() {
		s.dropTopicLocked(topic)
		return true
	}
	return sub == nil
}
