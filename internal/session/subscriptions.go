package session

import "iter"

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
