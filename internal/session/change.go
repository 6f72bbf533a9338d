package session

import (
	"maps"
	"slices"
	"strings"
	"time"

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
		search: s.registry.newSearch(), positions: make([]wire.Position, len(add)),
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
	named    int                 // topics and patterns that the client names more than before
	bytes    int                 // bytes of topics that only patterns match, more than before
	had      map[string]uint64   // offsets of this epoch that the client names beside resumed patterns, by topic

	// Set by joinLocked.
	search    *broker.Search
	fresh     []*subscription
	joined    map[string]bool     // topics of fresh
	notices   []notice            // of new patterns that have a gap to announce
	positions []wire.Position     // by index in add
	matched   []wire.Position     // of topics that were joined only for a pattern
	leftOut   map[string]*pattern // topics that do not fit, and a pattern that matches
}

// maxPatterns bounds the patterns of a session: a change matches topics against all of
// them while fan-outs wait. change.covers has a bit for each.
const maxPatterns = auth.MaxPatterns

// namedForPatterns is how many times the topics that fit into Config.PatternBytes a client may name
// when it resumes patterns: since its last poll the server may have forgotten many of its topics.
const namedForPatterns = 2

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
	if err := c.session.registry.cfg.Load().CheckNumber(max(len(c.add), len(remove)), patterns > 0); err != nil {
		return err
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

func tooMany(most, n int) error {
	return problem.New(wire.CodeTooManySubscriptions, "subscribe to fewer topics, use a pattern, or raise limits.subscriptions",
		"a client can name at most %d topics and patterns in a session; got %d", most, n)
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
// stays, unnamed, if a remaining pattern matches it and it fits. The topics of a removed pattern leave
// unless they are named or another pattern matches them.
func (c *change) planLocked(remove []string) {
	s := c.session
	remove = slices.Compact(slices.Sorted(slices.Values(remove)))
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
			c.named--
		}
	}
	if len(c.patterns) < len(s.patterns) {
		for topic, sub := range s.subs.all() {
			if !sub.named && !anyMatches(c.patterns, topic) {
				c.leaving[topic] = true
				c.bytes -= broker.BytesOf(topic)
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
		case c.covers != nil && start.From == wire.FromPosition && start.Epoch == s.registry.broker.Epoch(start.Topic):
			c.had[start.Topic] = start.After
		}
	}
	c.named += len(c.patterns) - len(s.patterns) - len(c.unnamed)
	c.unnamed = slices.DeleteFunc(c.unnamed, func(sub *subscription) bool {
		topic := sub.joined.Topic()
		if s.fitsLocked(topic, c.bytes) {
			c.bytes += broker.BytesOf(topic)
			return false
		}
		c.leaving[topic] = true
		c.leaveOutLocked(topic, c.patternOf(topic))
		return true
	})
}

// leaveOutLocked leaves out a topic that does not fit. The gap is that of a pattern that matches.
func (c *change) leaveOutLocked(topic string, p *pattern) {
	if c.leftOut == nil {
		c.leftOut = make(map[string]*pattern)
	}
	c.leftOut[topic] = p
}

// patternOf returns one of the patterns that the session will have and that match the topic, or nil.
func (c *change) patternOf(topic string) *pattern {
	for name, p := range c.patterns {
		if wire.Matches(name, topic) {
			return p
		}
	}
	return nil
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
	covering := c.coveringLocked(i, start)
	of := covering
	if of == nil {
		of = c.patternOf(start.Topic)
	}
	forgotten := wire.Position{Topic: start.Topic}
	if of != nil {
		forgotten.Epoch = s.registry.broker.Epoch(start.Topic)
	}
	if covering != nil && !s.registry.broker.Has(start.Topic) { // it takes no room
		return forgotten, nil
	}
	most, named := s.registry.cfg.Load().Subscriptions, s.namedLocked()+c.named+1
	fits := of == nil || s.fitsLocked(start.Topic, c.bytes)
	if resumes := c.covers != nil && len(c.covers[i]) > 0; !fits && !resumes { // a client may name a topic that its pattern leaves out
		of, fits = nil, true
	}
	switch {
	case of == nil && named > most:
		return wire.Position{}, tooMany(most, named)
	case !fits:
		c.leaveOutLocked(strings.Clone(start.Topic), of)
		if start.From == wire.FromPosition { // the client keeps it
			return wire.Position{Topic: strings.Clone(start.Topic), Epoch: strings.Clone(start.Epoch), Offset: start.After}, nil
		}
		return forgotten, nil
	}
	if covering != nil {
		sub, err := s.joinExisting(start, false)
		if sub == nil {
			return forgotten, err
		}
		return c.addFresh(sub), nil
	}
	sub := newSubscription(s, start, of == nil)
	j, err := s.registry.broker.Join(start, sub, sub.named)
	if err != nil {
		return wire.Position{}, err
	}
	sub.begin(j)
	return c.addFresh(sub), nil
}

// coveringLocked returns a resumed pattern that announces what the client lost of the i-th topic
// in add if that was forgotten. It returns nil if there is none.
func (c *change) coveringLocked(i int, start wire.Start) *pattern {
	b := c.session.registry.broker
	if c.covers == nil {
		return nil
	}
	for _, p := range c.covers[i] {
		if of := c.patterns[p.Topic]; c.isNew(of) && b.Covers(p, start) {
			return of
		}
	}
	return nil
}

// joinMatchedLocked joins a topic that a new pattern matches, unless the session has it, or it does
// not fit. For a resumed pattern the topic is new to the client, so it starts at its first message.
// If the client's position is of another epoch, it starts at the oldest message held. An ephemeral
// topic starts now, or where the client said: it may have been created since joinNamedLocked.
func (c *change) joinMatchedLocked(p *pattern, topic string, start wire.Start) error {
	if c.joined[topic] || c.leftOut[topic] != nil || c.hasLocked(topic) || c.forbidden.Find(topic) != nil {
		return nil
	}
	if !c.session.fitsLocked(topic, c.bytes) {
		c.leaveOutLocked(topic, p)
		return nil
	}
	b := c.session.registry.broker
	born := start.From == wire.FromPosition && start.Epoch == b.Epoch(start.Topic) && !b.IsEphemeral(topic)
	if start.From == wire.FromPosition {
		start.From = wire.FromOldest
	}
	if after, named := c.had[topic]; named && b.IsEphemeral(topic) {
		start.From, start.Epoch, start.After = wire.FromPosition, b.Epoch(topic), after
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

// addFresh adds a new subscription and returns where it starts.
func (c *change) addFresh(sub *subscription) wire.Position {
	c.fresh = append(c.fresh, sub)
	c.joined[sub.joined.Topic()] = true
	if sub.named {
		c.named++
	} else {
		c.bytes += broker.BytesOf(sub.joined.Topic())
	}
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
		if sub := s.subs.get(topic); sub != nil {
			sub.leaveLocked(time.Time{}) // a grace is for clients that come back
		}
		s.dropTopicLocked(topic)
	}
	if s.matched == nil && len(s.patterns) > 0 {
		s.matched = &matched{}
	}
	for _, sub := range c.unnamed {
		sub.named = false
		s.matched.count(sub.joined.Topic(), 1)
		sub.joined.Pin(false)
		sub.releaseTopicLocked()
	}
	s.notices = append(s.notices, c.notices...)
	s.dropNoticesLocked()
	for topic, p := range c.leftOut {
		s.matched.leaveOut(topic)
		s.leaveOutSomeLocked(p)
	}
	s.searchLaterLocked()
	s.adoptLocked(c.fresh...)
	s.countLocked()
}

// adoptLocked adds joined subscriptions to the session. They replace those whose topics
// were forgotten.
func (s *Session) adoptLocked(fresh ...*subscription) {
	for _, sub := range fresh {
		s.dropTopicLocked(sub.joined.Topic())
		s.subs.put(sub)
		if !sub.named {
			s.matched.count(sub.joined.Topic(), 1)
		}
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
	if !sub.named {
		s.matched.count(topic, -1)
		s.searchLaterLocked()
	}
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
