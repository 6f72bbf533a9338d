package session

import (
	"maps"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// matched has what the patterns of a session match. The client named none of these topics, so they
// have a budget of their own: Config.PatternBytes. The session leaves out topics that do not fit,
// and says so with gaps, unfollowed. It does not remember which they are: when there is room again,
// it searches for them. The session's mu guards it.
type matched struct {
	topics     int           // that the session follows
	bytes      int           // of them; see broker.BytesOf
	unfollowed int           // topics left out, at least; some may have been forgotten since
	came       int           // topics left out since the last search began
	least      int           // bytes of the smallest of these
	searched   time.Duration // after Session.opened: when the session last searched
}

// leaveOut counts a topic that is left out.
func (m *matched) leaveOut(topic string) {
	if bytes := broker.BytesOf(topic); m.unfollowed == 0 || bytes < m.least {
		m.least = bytes
	}
	m.unfollowed++
	m.came++
}

// count adds a topic, or removes it with n = -1.
func (m *matched) count(topic string, n int) {
	m.topics += n
	m.bytes += n * broker.BytesOf(topic)
}

// maxUnfollowedGaps bounds the gaps of topics that do not fit, or fit again, until a poll takes
// them. Beyond it a gap of the pattern stands for topics that do not fit, and topics that fit again
// wait.
const maxUnfollowedGaps = 64

// searchEvery is the shortest time between two searches of a session: a search takes up to some
// milliseconds.
const searchEvery = 2 * time.Second

// mostMatched returns how many topics can fit into PatternBytes.
func (c *Config) mostMatched() int { return c.PatternBytes / broker.BytesOf("t") }

// newSearch returns a search that finds all topics that fit, besides those that clients name, and
// as many gaps as may wait.
func (r *Registry) newSearch() *broker.Search {
	c := r.cfg.Load()
	return broker.NewSearch(c.Subscriptions + c.mostMatched() + maxUnfollowedGaps)
}

// fitsLocked reports whether a topic that a pattern matches fits besides those that the session
// has, and more bytes.
func (s *Session) fitsLocked(topic string, more int) bool {
	return s.roomLocked()-more >= broker.BytesOf(topic)
}

// roomLocked returns how many bytes of PatternBytes the session does not use.
func (s *Session) roomLocked() int {
	room := s.registry.cfg.Load().PatternBytes
	if s.matched != nil {
		room -= s.matched.bytes
	}
	return room
}

// namedLocked returns how many topics and patterns the client has named.
func (s *Session) namedLocked() int {
	n := s.subs.len() + len(s.patterns)
	if s.matched != nil {
		n -= s.matched.topics
	}
	return n
}

// Unfollowed returns how many topics the session's patterns match and the session leaves out. It
// counts those that were found, and some of them may have been forgotten since.
func (s *Session) Unfollowed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unfollowedLocked()
}

func (s *Session) unfollowedLocked() int {
	if s.matched == nil || s.ended != nil {
		return 0
	}
	return s.matched.unfollowed
}

// startLocked returns how a topic that patterns match begins: with the pace of the most specific
// one. best is nil if none matches.
func (s *Session) startLocked(topic string) (start wire.Start, best *pattern) {
	for name, p := range s.patterns {
		if wire.Matches(name, topic) && (best == nil || wire.MoreSpecific(name, best.name)) {
			best = p
		}
	}
	start.Topic = topic
	if best != nil {
		start.Every = best.every
	}
	return start, best
}

// leaveOutLocked leaves out a new topic of the pattern. The client gets a gap before all messages of
// the topic; or, if many gaps wait, one of the pattern.
func (s *Session) leaveOutLocked(p *pattern, topic string) {
	s.matched.leaveOut(topic)
	s.searchLaterLocked()
	at, exists := s.registry.broker.Birth(topic)
	switch {
	case !exists:
		return
	case s.unfollowedGapsLocked() < maxUnfollowedGaps:
		left := &subscription{session: s, joined: p.notice.joined, named: true, epoch: at.Epoch, sentTo: at, ackedTo: at}
		s.notices = append(s.notices, notice{left, &wire.Gap{Topic: at.Topic, Reason: wire.GapUnfollowed, After: at, Position: at}})
	default:
		s.leaveOutSomeLocked(p)
	}
	s.countLocked()
	s.wakeLocked()
}

// dropNoticesLocked drops gaps of subscriptions and patterns that the session has no longer.
func (s *Session) dropNoticesLocked() {
	s.notices = slices.DeleteFunc(s.notices, func(n notice) bool {
		return n.sub.dropped || n.isUnfollowed() && !wire.IsPattern(n.gap.Topic) && !anyMatches(s.patterns, n.gap.Topic)
	})
	if len(s.patterns) == 0 && s.matched != nil {
		s.matched.unfollowed, s.matched.came = 0, 0
	}
}

// leaveOutSomeLocked announces that topics of the pattern are left out, unless that waits to be
// announced.
func (s *Session) leaveOutSomeLocked(p *pattern) {
	if slices.ContainsFunc(s.notices, func(n notice) bool { return n.sub == &p.notice && n.gap != nil }) {
		return
	}
	at := s.registry.broker.PatternPosition(p.name)
	s.notices = append(s.notices, notice{&p.notice, &wire.Gap{Topic: p.name, Reason: wire.GapUnfollowed, After: at, Position: at}})
}

// unfollowedGapsLocked returns how many gaps of topics that do not fit, or fit again, wait.
func (s *Session) unfollowedGapsLocked() (n int) {
	for _, waiting := range s.notices {
		if waiting.isUnfollowed() {
			n++
		}
	}
	return n
}

// searchLaterLocked has the session visited when it may search again.
func (s *Session) searchLaterLocked() {
	if s.unfollowedLocked() > 0 {
		s.registry.sessions.visitBy(s, s.opened.Add(s.matched.searched+searchEvery))
	}
}

// canFollowMoreLocked reports whether a topic that was left out may fit by now, and since when the
// session may search for it. A stateless poll does not search: the next poll finds what fits, and
// follows it from its first message.
func (s *Session) canFollowMoreLocked() (since time.Time, can bool) {
	if s.number == 0 || s.unfollowedLocked() == 0 || s.roomLocked() < s.matched.least || s.unfollowedGapsLocked() >= maxUnfollowedGaps {
		return time.Time{}, false
	}
	return s.opened.Add(s.matched.searched + searchEvery), true
}

// followMore follows topics that were left out, as far as they fit. Each begins now, with a gap
// from its beginning.
func (s *Session) followMore(search *broker.Search, now time.Time) {
	s.mu.Lock()
	if _, can := s.canFollowMoreLocked(); !can {
		s.mu.Unlock()
		return
	}
	s.matched.searched, s.matched.came = now.Sub(s.opened), 0
	patterns := slices.Collect(maps.Keys(s.patterns))
	s.mu.Unlock()

	var topics []string // without the lock: fan-outs go on
	complete := true
	for _, pattern := range patterns {
		found, ok := s.registry.broker.Matching(pattern, search)
		topics, complete = append(topics, found...), complete && ok
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return
	}
	came := s.matched.came // meanwhile
	s.matched.unfollowed = 0
	for _, topic := range topics {
		if s.unsubscribedLocked(topic) && s.forbidden().Find(topic) == nil && !s.followAgainLocked(topic) {
			s.matched.leaveOut(topic)
		}
	}
	if came > 0 || !complete {
		s.matched.leaveOut("t") // of which nothing is known
		s.matched.unfollowed += max(0, came-1)
	}
	s.countLocked()
}

// followAgainLocked follows a topic that a pattern matches. It reports false if the topic has to
// wait. No message is missed between the gap and the first offer: that waits for the session's lock.
func (s *Session) followAgainLocked(topic string) bool {
	if !s.fitsLocked(topic, 0) || s.unfollowedGapsLocked() >= maxUnfollowedGaps {
		return false // first: startLocked takes long, and most topics do not fit
	}
	start, p := s.startLocked(topic)
	if p == nil { // its pattern was removed
		return true
	}
	sub := newSubscription(s, start, false)
	j, exists, err := s.registry.broker.JoinIfThere(start, false, sub)
	if err != nil || !exists {
		return err == nil
	}
	sub.begin(j)
	if j.Born < j.Cursor { // else the topic has no messages yet
		at := sub.ackedTo
		sub.sentTo.Offset, sub.ackedTo.Offset = j.Born, j.Born // until the client has the gap
		s.notices = append(s.notices, notice{sub, &wire.Gap{Topic: at.Topic, Reason: wire.GapUnfollowed, After: sub.ackedTo, Position: at}})
	}
	s.adoptLocked(sub)
	return true
}
