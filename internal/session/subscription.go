package session

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A subscription is one topic of one session. While it is live, every message up to cursor
// is or was in the queue. While it is behind, every message above cursor is to be read from
// the history. The session's mu guards it.
type subscription struct {
	session *Session             // immutable
	joined  *broker.Subscription // immutable once begin has set it

	epoch   string         // of cursor, last and every unacked message
	cursor  uint64         // offset up to which messages were queued, taken, or skipped as the client's own
	last    uint64         // offset of the newest message that was queued or taken
	behind  bool           // is in session.behind
	slow    bool           // fell behind: the topic's policy holds until it is live again
	lost    wire.GapReason // of the next gap: slow if it was ever live; empty: the history's own
	dropped bool           // nothing more of it is sent
	named   bool           // the client named it; otherwise a pattern matches it
	present bool           // makes the client a member of the topic; see presence
	pace    *pace          // how often it reads; nil: for every message

	sentTo  wire.Position // of the newest frame sent, or where it began; or where it has moved, if the client was told
	ackedTo wire.Position // of the newest frame acked, or where it began
}

func newSubscription(s *Session, start wire.Start, named bool) *subscription {
	sub := &subscription{session: s, named: named}
	if start.Every > 0 {
		sub.pace = &pace{every: start.Every}
	}
	return sub
}

// begin sets where the subscription begins. No offer sees it earlier: the session's mu is
// held, or nobody else knows the session.
func (sub *subscription) begin(j broker.Joined) {
	sub.joined = j.Subscription
	sub.epoch, sub.cursor, sub.last, sub.behind = j.Epoch, j.Cursor, j.Cursor, !j.Live
	sub.sentTo, sub.ackedTo = j.Position, j.Position
	if j.Live {
		sub.lost = wire.GapSlow
	}
	sub.countPace(paceBytes)
}

// countPace adds to the memory of the pace, if there is one. The broker counts the subscription.
func (sub *subscription) countPace(bytes int64) {
	if sub.pace != nil {
		sub.session.registry.broker.Memory().Add(memory.Topics, bytes)
	}
}

func (sub *subscription) dropLocked() {
	if !sub.dropped {
		sub.countPace(-paceBytes)
	}
	sub.joined.Leave()
	if sub.pace != nil && sub.pace.timer != nil {
		sub.pace.timer.Stop()
	}
	sub.disappearLocked()
	sub.dropped = true
}

// releaseTopicLocked lets the topic be forgotten once the client has acked everything. A topic
// that the client named is kept in any case.
func (sub *subscription) releaseTopicLocked() {
	if !sub.named && !sub.behind && sub.ackedTo.Offset >= sub.last && sub.ackedTo.Epoch == sub.epoch {
		sub.joined.DoneTo(sub.cursor)
	}
}

// markBehindLocked has polls read the history for the subscription, in its turn.
func (sub *subscription) markBehindLocked() {
	sub.behind = true
	sub.session.behind = append(sub.session.behind, sub)
}

// catchUpLocked marks a live subscription behind and wakes a parked poll to read.
func (sub *subscription) catchUpLocked() {
	if !sub.behind && !sub.dropped {
		sub.markBehindLocked()
		sub.session.wakeLocked()
	}
}

// readLocked returns what the history has next above cursor, within limit. It makes the
// subscription live if nothing remains. No message is missed between the two: its Offer
// waits for the session's lock, and then finds the subscription live.
func (sub *subscription) readLocked(limit frame.Limit, now time.Time) []*frame.Frame {
	how := broker.Reading{
		Had: sub.sentTo, After: sub.cursor, Lost: sub.lost, Slow: sub.slow,
		Limit: limit,
	}
	if sub.session.noEcho {
		how.NoEcho = sub.session.client
	}
	if sub.pace != nil {
		how.Conflate, how.UpTo = true, sub.pace.upTo
	}
	frames, at, head := sub.joined.Read(nil, how, now)
	if at.Epoch != sub.epoch {
		// Unacked messages of the old epoch cannot be sent again. They become gaps, which get a
		// reason when they are sent.
		for i := range sub.session.window.unacked {
			if u := &sub.session.window.unacked[i]; u.sub == sub && u.gap == nil {
				sub.session.loseLocked(i)
			}
		}
		if sub.epoch = at.Epoch; sub.pace != nil {
			sub.pace.upTo = 0
		}
	}
	sub.cursor, sub.behind, sub.lost = at.Offset, at.Offset < head, wire.GapSlow
	if sub.pace != nil {
		sub.behind = sub.pace.readLocked(sub, head, now)
	}
	sub.slow = sub.slow && sub.behind
	return frames
}

func (sub *subscription) stateLocked() wire.SubscriptionState {
	state := wire.SubscriptionState{
		Topic: sub.joined.Topic(), Sent: sub.sentTo, Acked: sub.ackedTo, Behind: sub.behind,
	}
	if head := sub.joined.Head(); head > sub.sentTo.Offset {
		state.Lag = head - sub.sentTo.Offset
	}
	return state
}

// sortedLocked returns the subscriptions by topic.
func (s *Session) sortedLocked() []*subscription {
	subs := make([]*subscription, 0, s.subs.len())
	for _, sub := range s.subs.all() {
		subs = append(subs, sub)
	}
	slices.SortFunc(subs, func(x, y *subscription) int { return strings.Compare(x.joined.Topic(), y.joined.Topic()) })
	return subs
}

// ackedPositionsLocked returns the positions from which a client continues in another
// session: those of the patterns, then those of the topics up to which all is acked.
func (s *Session) ackedPositionsLocked() []wire.Position {
	positions := make([]wire.Position, 0, len(s.patterns)+s.subs.len())
	for _, name := range slices.Sorted(maps.Keys(s.patterns)) {
		positions = append(positions, s.patterns[name].positionLocked())
	}
	for _, sub := range s.sortedLocked() {
		positions = append(positions, sub.reachedLocked())
	}
	return positions
}

// subscriptions holds those of one session, by topic. The zero value is empty. The session's mu
// guards it.
//
// Most sessions have one topic, and a map for it takes 260 bytes, a sixth of a waiting long poll.
type subscriptions struct {
	only *subscription            // nil: there is none, or many has them
	many map[string]*subscription // nil until there are two
}

// get returns the subscription to a topic, or nil.
func (s *subscriptions) get(topic string) *subscription {
	if s.only != nil && s.only.joined.Topic() == topic {
		return s.only
	}
	return s.many[topic]
}

// put adds a subscription to a topic that has none.
func (s *subscriptions) put(sub *subscription) {
	if s.many == nil {
		if s.only == nil {
			s.only = sub
			return
		}
		s.many, s.only = map[string]*subscription{s.only.joined.Topic(): s.only}, nil
	}
	s.many[sub.joined.Topic()] = sub
}

// remove removes the subscription to a topic.
func (s *subscriptions) remove(topic string) {
	if s.only != nil && s.only.joined.Topic() == topic {
		s.only = nil
	}
	delete(s.many, topic)
}

func (s *subscriptions) len() int {
	if s.only != nil {
		return 1
	}
	return len(s.many)
}

// all returns the topics and their subscriptions, in no order. The caller may remove them meanwhile.
func (s *subscriptions) all() iter.Seq2[string, *subscription] {
	return func(yield func(string, *subscription) bool) {
		if s.only != nil {
			yield(s.only.joined.Topic(), s.only)
			return
		}
		for topic, sub := range s.many {
			if !yield(topic, sub) {
				return
			}
		}
	}
}
