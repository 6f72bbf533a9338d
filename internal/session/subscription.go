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
		if !s.enqueueLocked(queued{sub, f}) {
			sub.fallBehindLocked()
			return
		}
		sub.cursor = offset
	}
}

// enqueueLocked reports whether the entry fitted the queue.
func (s *Session) enqueueLocked(e queued) bool {
	size := e.frame.Size()
	if s.pinned > 0 && s.pinned+size > queueBytes {
		return false
	}
	select {
	case s.queue <- e:
		s.pinned += size
		return true
	default:
		return false
	}
}

func (sub *subscription) fallBehindLocked() {
	s := sub.session
	s.metrics.FellBehind.Inc()
	sub.behind, sub.lost = true, wire.GapSlow
	s.behind = append(s.behind, sub)
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
// parked, and returns the position of each topic in add: where it begins, or,
// if the session has it already, what the client has acked of it. The error is a
// *wire.Problem.
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
	if err := s.checkRoomLocked(add, dropped); err != nil {
		return nil, err
	}
	positions, fresh, err := s.joinLocked(add, dropped)
	if err != nil {
		return nil, err
	}
	for topic := range dropped {
		if sub := s.subs[topic]; sub != nil {
			sub.dropLocked()
			delete(s.subs, topic)
		}
	}
	s.behind = slices.DeleteFunc(s.behind, func(sub *subscription) bool { return sub.dropped })
	s.adoptLocked(fresh)
	return positions, nil
}

// checkChange checks what can be checked without the lock, which fan-outs wait
// for, and returns the topics to remove as a set.
func (s *Session) checkChange(add []wire.Start, remove []string) (map[string]bool, error) {
	if len(add) > s.cfg.Subscriptions || len(remove) > s.cfg.Subscriptions {
		return nil, s.tooMany(max(len(add), len(remove)))
	}
	asked := make(map[string]bool, len(add))
	for _, start := range add {
		if err := wire.CheckTopic(start.Topic); err != nil {
			return nil, wire.NewProblem(wire.CodeInvalidTopic, "see PROTOCOL.md, Words", "%v", err)
		}
		if asked[start.Topic] {
			return nil, wire.NewProblem(wire.CodeInvalidRequest, "name it once", "topic %q is named twice", start.Topic)
		}
		asked[start.Topic] = true
	}
	dropped := make(map[string]bool, len(remove))
	for _, topic := range remove {
		if err := wire.CheckTopic(topic); err != nil {
			return nil, wire.NewProblem(wire.CodeInvalidTopic, "see PROTOCOL.md, Words", "%v", err)
		}
		dropped[topic] = true
	}
	return dropped, nil
}

// checkRoomLocked holds the bound on subscriptions.
func (s *Session) checkRoomLocked(add []wire.Start, dropped map[string]bool) error {
	n := len(s.subs)
	for topic := range dropped {
		if s.subs[topic] != nil {
			n--
		}
	}
	for _, start := range add {
		if s.subs[start.Topic] == nil || dropped[start.Topic] {
			n++
		}
	}
	if n > s.cfg.Subscriptions {
		return s.tooMany(n)
	}
	return nil
}

func (s *Session) tooMany(n int) error {
	return wire.NewProblem(wire.CodeTooManySubscriptions,
		fmt.Sprintf("name at most %d, or raise limits.subscriptions", s.cfg.Subscriptions),
		"%d topics are more than a session may hold", n)
}

// joinLocked joins the topics in add that the session does not have or is about
// to drop. If one cannot be joined, none is.
func (s *Session) joinLocked(add []wire.Start, dropped map[string]bool) ([]wire.Position, []*subscription, error) {
	positions := make([]wire.Position, 0, len(add))
	var fresh []*subscription
	for _, start := range add {
		if sub := s.subs[start.Topic]; sub != nil && !dropped[start.Topic] {
			positions = append(positions, sub.ackedTo)
			continue
		}
		sub, err := s.join(start)
		if err != nil {
			for _, sub := range fresh {
				sub.dropLocked()
			}
			return nil, nil, err
		}
		fresh = append(fresh, sub)
		positions = append(positions, sub.ackedTo)
	}
	return positions, fresh, nil
}

func (s *Session) join(start wire.Start) (*subscription, error) {
	sub := &subscription{session: s}
	j, err := s.broker.Join(start, sub)
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

// adoptLocked makes subscriptions the session's.
func (s *Session) adoptLocked(fresh []*subscription) {
	for _, sub := range fresh {
		s.subs[sub.joined.Topic()] = sub
		if sub.behind {
			s.behind = append(s.behind, sub)
		}
	}
	s.wakeLocked()
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
