package session

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A subscription is one topic of one session. It is live, and then the queue
// holds, or has held, everything up to cursor; or behind, and then everything
// above cursor is still to be read from the history. Its session's mu guards
// it.
type subscription struct {
	session *Session
	joined  *broker.Subscription

	epoch   string         // of cursor, last and every unacked message
	cursor  uint64         // offset up to which frames were queued or taken, or are the client's own
	last    uint64         // offset of the last that was queued or taken
	behind  bool           // is in session.behind
	slow    bool           // fell behind: the topic's policy holds until it is live again
	lost    wire.GapReason // what to call a loss: slow, once it was live; else whatever the history says
	dropped bool           // unsubscribed: what was not sent is not sent any more
	named   bool           // by the client; else only a pattern matches it
	pace    *pace          // how often it takes; nil: whenever something comes

	sentTo  wire.Position // of the last frame sent, or where it began
	ackedTo wire.Position // of the last frame acked, or where it began
}

func newSubscription(s *Session, start wire.Start, named bool) *subscription {
	return &subscription{session: s, named: named, pace: newPace(start.Every)}
}

// begin begins where the broker says, before any offer is looked at: its session's mu
// is held, or nobody else has the session.
func (sub *subscription) begin(j broker.Joined) {
	sub.joined = j.Subscription
	sub.epoch, sub.cursor, sub.last, sub.behind = j.Epoch, j.Cursor, j.Cursor, !j.Live
	sub.sentTo, sub.ackedTo = j.Position, j.Position
	if j.Live {
		sub.lost = wire.GapSlow
	}
}

func (sub *subscription) dropLocked() {
	sub.joined.Leave()
	sub.pace.stopLocked()
	sub.dropped = true
}

// settleLocked lets the topic be forgotten as far as the client has had it. A
// subscription of its own that the client named keeps it anyway.
func (sub *subscription) settleLocked() {
	if !sub.named && !sub.behind && sub.ackedTo.Offset >= sub.last && sub.ackedTo.Epoch == sub.epoch {
		sub.joined.Settle(sub.cursor)
	}
}

// readLocked returns the next of what the history holds above cursor, within
// limit, and makes the subscription live again if that is all.
//
// Nothing can be published in between unnoticed: an offer of a newer message
// waits for the session's lock, and then finds the subscription live.
func (sub *subscription) readLocked(limit broker.Limit, now time.Time) []*frame.Frame {
	if sub.pace != nil {
		return sub.pace.readLocked(sub, limit, now)
	}
	frames, at, head := sub.joined.Read(nil, sub.reading(limit), now)
	sub.reachLocked(at)
	sub.behind = at.Offset < head
	sub.slow = sub.slow && sub.behind
	return frames
}

// reachLocked moves the cursor to where a reading ended. If the topic has begun another
// epoch, the unacked messages of the one before cannot be sent again: they become gaps.
func (sub *subscription) reachLocked(at wire.Position) {
	if at.Epoch != sub.epoch {
		s := sub.session
		for i := range s.unacked {
			if u := &s.unacked[i]; u.sub == sub && u.gap == nil {
				u.gap = &wire.Gap{Topic: at.Topic, Reason: wire.GapRestarted, After: s.beforeLocked(i), Position: sub.positionOf(u)}
			}
		}
		sub.epoch = at.Epoch
	}
	sub.cursor, sub.lost = at.Offset, wire.GapSlow
}

// positionOf returns the position of a frame that was sent.
func (sub *subscription) positionOf(u *sent) wire.Position {
	if u.gap != nil {
		return u.gap.Position
	}
	return wire.Position{Topic: sub.joined.Topic(), Epoch: sub.epoch, Offset: u.offset}
}

// reading says what is to be read from history next.
func (sub *subscription) reading(limit broker.Limit) broker.Reading {
	return broker.Reading{
		Had: sub.sentTo, After: sub.cursor, Lost: sub.lost, Slow: sub.slow,
		Except: sub.session.except, Limit: limit,
	}
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

func (s *Session) sortedLocked() []*subscription {
	subs := make([]*subscription, 0, len(s.subs))
	for _, sub := range s.subs {
		subs = append(subs, sub)
	}
	slices.SortFunc(subs, func(x, y *subscription) int { return strings.Compare(x.joined.Topic(), y.joined.Topic()) })
	return subs
}

// ackedPositionsLocked returns what to reopen from: the position of each pattern, and
// of each topic what is acked of it.
func (s *Session) ackedPositionsLocked() []wire.Position {
	positions := make([]wire.Position, 0, len(s.patterns)+len(s.subs))
	for _, pattern := range slices.Sorted(maps.Keys(s.patterns)) {
		positions = append(positions, s.patterns[pattern].positionLocked())
	}
	for _, sub := range s.sortedLocked() {
		positions = append(positions, sub.ackedTo)
	}
	return positions
}
