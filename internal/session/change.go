package session

import (
	"fmt"
	"slices"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

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
