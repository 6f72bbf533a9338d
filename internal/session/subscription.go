package session

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A subscription is one topic of one session. It is live, and then the queue
// holds, or has held, everything up to cursor; or behind, and then everything
// above cursor is still to be read from the history. Its session's mu guards
// it.
type subscription struct {
	session *Session
	joined  *broker.Subscription

	cursor  uint64         // offset up to which frames were queued or taken
	behind  bool           // is in session.behind
	lost    wire.GapReason // what to call a loss: slow, once it was live; else whatever the history says
	restart *wire.Position // announce first that this position cannot be honoured
	dropped bool           // unsubscribed: what was not sent is not sent any more

	sentTo  wire.Position // of the last frame sent, or where it began
	ackedTo wire.Position // of the last frame acked, or where it began
}

// Offer implements broker.Subscriber: it queues what fits and leaves the rest in
// the history.
func (sub *subscription) Offer(frames []*wire.Frame) {
	s := sub.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.behind || sub.dropped {
		return
	}
	for _, f := range frames {
		offset := f.Position().Offset
		if offset <= sub.cursor {
			continue // it was there when the subscription began, or was read from history
		}
		select {
		case s.queue <- queued{sub, f}:
			sub.cursor = offset
		default:
			s.metrics.FellBehind.Inc()
			sub.lost = wire.GapSlow
			sub.fallBehindLocked()
			return
		}
	}
}

func (sub *subscription) fallBehindLocked() {
	sub.behind = true
	sub.session.behind = append(sub.session.behind, sub)
}

func (sub *subscription) dropLocked() {
	sub.joined.Leave()
	sub.dropped = true
}

// catchUpLocked returns the next of what the history holds above cursor, within
// limit, and makes the subscription live again if that is all.
//
// Nothing can be published in between unnoticed: an offer of a newer message
// waits for the session's lock, and then finds the subscription live.
func (sub *subscription) catchUpLocked(limit broker.Limit, now time.Time) []*wire.Frame {
	if sub.restart != nil {
		return sub.announceRestartLocked()
	}
	frames, cursor, live := sub.joined.Read(nil, sub.cursor, sub.lost, limit, now)
	sub.cursor, sub.behind, sub.lost = cursor, !live, wire.GapSlow
	return frames
}

// announceRestartLocked returns the gap for the position that could not be
// honoured. It reaches to the oldest message that is held now.
func (sub *subscription) announceRestartLocked() []*wire.Frame {
	sub.cursor = max(sub.cursor, sub.joined.Lost())
	gap := broker.RestartedGap(*sub.restart, sub.joined.Position(sub.cursor))
	sub.restart = nil
	return []*wire.Frame{wire.NewGapFrame(gap)}
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

func (s *Session) ackedPositionsLocked() []wire.Position {
	positions := make([]wire.Position, 0, len(s.subs))
	for _, sub := range s.sortedLocked() {
		positions = append(positions, sub.ackedTo)
	}
	return positions
}

// Change removes and adds subscriptions, all or none, also while a poll is
// parked, and returns the position of each topic in add: where it begins, or
// where it is if the session has it already. The error is a *wire.Problem.
func (s *Session) Change(add []wire.Start, remove []string) ([]wire.Position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, s.ended
	}
	if err := s.checkChangeLocked(add, remove); err != nil {
		return nil, err
	}
	positions, fresh, err := s.joinLocked(add, remove)
	if err != nil {
		return nil, err
	}
	for _, topic := range remove {
		if sub := s.subs[topic]; sub != nil {
			sub.dropLocked()
			delete(s.subs, topic)
		}
	}
	s.behind = slices.DeleteFunc(s.behind, func(sub *subscription) bool { return sub.dropped })
	for _, sub := range fresh {
		s.subs[sub.joined.Topic()] = sub
	}
	s.wakeLocked()
	return positions, nil
}

func (s *Session) checkChangeLocked(add []wire.Start, remove []string) error {
	topics := make(map[string]bool, len(s.subs)+len(add))
	for topic := range s.subs {
		topics[topic] = true
	}
	for _, topic := range remove {
		delete(topics, topic)
	}
	asked := make(map[string]bool, len(add))
	for _, start := range add {
		if asked[start.Topic] {
			return wire.NewProblem(wire.CodeInvalidRequest, "name it once", "topic %q is named twice", start.Topic)
		}
		asked[start.Topic], topics[start.Topic] = true, true
	}
	if len(topics) > s.cfg.Subscriptions {
		return wire.NewProblem(wire.CodeTooManySubscriptions,
			fmt.Sprintf("hold at most %d, or raise limits.subscriptions", s.cfg.Subscriptions),
			"the session would hold %d topics", len(topics))
	}
	return nil
}

// joinLocked joins the topics in add that the session does not have or is about
// to remove. If one cannot be joined, none is.
func (s *Session) joinLocked(add []wire.Start, remove []string) ([]wire.Position, []*subscription, error) {
	positions := make([]wire.Position, 0, len(add))
	var fresh []*subscription
	for _, start := range add {
		if sub := s.subs[start.Topic]; sub != nil && !slices.Contains(remove, start.Topic) {
			positions = append(positions, sub.sentTo)
			continue
		}
		sub, position, err := s.join(start)
		if err != nil {
			for _, sub := range fresh {
				sub.dropLocked()
			}
			return nil, nil, err
		}
		fresh = append(fresh, sub)
		positions = append(positions, position)
	}
	return positions, fresh, nil
}

func (s *Session) join(start wire.Start) (*subscription, wire.Position, error) {
	sub := &subscription{session: s}
	j, err := s.broker.Join(start, sub)
	if err != nil {
		return nil, wire.Position{}, err
	}
	sub.joined = j.Subscription
	sub.cursor, sub.restart = j.Cursor, j.Restart
	sub.sentTo, sub.ackedTo = j.Position, j.Position
	if j.Live {
		sub.lost = wire.GapSlow
	} else {
		sub.fallBehindLocked()
	}
	return sub, j.Position, nil
}

// wakeLocked wakes a parked poll to look at what is behind. A queue that is full
// needs no waking.
func (s *Session) wakeLocked() {
	if len(s.behind) == 0 {
		return
	}
	select {
	case s.queue <- queued{}:
	default:
	}
}
