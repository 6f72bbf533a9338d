package session

import (
	"cmp"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Order is the order of a List.
type Order string

// The orders. Older sessions come before equal younger ones.
const (
	ByLag  Order = "lag"  // largest lag first
	ByIdle Order = "idle" // longest time without a poll first
)

// Orders returns all orders.
func Orders() []Order { return []Order{ByLag, ByIdle} }

// first sorts sessions and returns the first n.
func (o Order) first(sessions []wire.ListedSession, n int) []wire.ListedSession {
	slices.SortFunc(sessions, func(x, y wire.ListedSession) int {
		if o == ByIdle {
			return cmp.Or(cmp.Compare(y.IdleMS, x.IdleMS), cmp.Compare(x.Number, y.Number))
		}
		return cmp.Or(cmp.Compare(y.Lag, x.Lag), cmp.Compare(x.Number, y.Number))
	})
	return sessions[:min(n, len(sessions))]
}

// List describes the first n open sessions and connections in an order, and counts all. It locks one
// session at a time and holds at most 4 n of them in memory.
func (r *Registry) List(n int, by Order, now time.Time) wire.SessionList {
	list := wire.SessionList{Stateless: int(r.ephemeral.Load()), Sessions: []wire.ListedSession{}}
	r.sessions.each(func(s *Session) {
		if listed, ok := s.listed(now); ok {
			if s.ephemeral {
				list.Connections++
			} else {
				list.Open++
			}
			list.Sessions = append(list.Sessions, listed)
		}
		if len(list.Sessions) >= 4*n {
			list.Sessions = by.first(list.Sessions, n)
		}
	})
	list.Sessions = by.first(list.Sessions, n)
	return list
}

// listed describes the session for operators, unless it is for one stateless poll or has
// ended.
func (s *Session) listed(now time.Time) (l wire.ListedSession, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ephemeral && s.peer == nil || s.ended != nil {
		return l, false
	}
	l = wire.ListedSession{
		Number: s.number, AgeMS: now.Sub(s.opened).Milliseconds(), IdleMS: s.idleLocked(now), Polling: s.readers.newest != nil,
		Subscriptions: s.subs.len(), Queued: len(s.queue.frames), Unacked: len(s.window.unacked),
	}
	if p := s.peer; p != nil {
		l.Transport, l.Address, l.Agent = p.Transport, p.Address, p.Agent.Value()
	}
	var most uint64
	for topic, sub := range s.subs.all() {
		lag := uint64(0)
		// A live subscription was offered all messages, and the missing ones are the client's own.
		if !s.noEcho || sub.behind || sub.pace != nil || s.queue.pinned > 0 {
			lag = sub.stateLocked().Lag
		}
		l.Lag += lag
		if lag > most || lag == most && lag > 0 && topic < l.Worst {
			most, l.Worst = lag, topic
		}
	}
	if l.Lag > 0 {
		l.Why = s.waitsForLocked()
	}
	return l, true
}

// What a session that lags waits for, in ListedSession.Why. The list only grows.
const (
	waitAck     = "ack"     // the window of unacked frames is full
	waitPoll    = "poll"    // there is no poll
	waitReader  = "reader"  // the queue is full: the client reads too slowly
	waitHistory = "history" // it catches up from the topics' histories
	waitRate    = "rate"    // its max_rate holds messages back
)

// Waits returns all values of ListedSession.Why, for documents and tests.
func Waits() []string { return []string{waitAck, waitPoll, waitReader, waitHistory, waitRate} }

// waitsForLocked returns what a session that lags waits for, or nothing if it is being
// served.
func (s *Session) waitsForLocked() string {
	switch {
	case len(s.window.unacked) >= s.registry.cfg.Load().Unacked && (s.readers.newest == nil || s.readers.newest.acking != AcksLater):
		return waitAck // with a poll or without
	case s.readers.newest == nil:
		return waitPoll
	case len(s.behind) > 0 && s.queue.pinned > 0:
		return waitReader
	case len(s.behind) > 0:
		return waitHistory
	}
	for _, sub := range s.subs.all() {
		if sub.pace != nil && sub.pace.armed {
			return waitRate
		}
	}
	return ""
}
