package session

import (
	"cmp"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Order says which sessions a List begins with.
type Order string

// The orders. Of equal sessions the older one comes first.
const (
	ByLag  Order = "lag"  // the largest lag
	ByIdle Order = "idle" // the longest time without a poll
)

// Orders returns every order.
func Orders() []Order { return []Order{ByLag, ByIdle} }

func (o Order) compare(x, y wire.ListedSession) int {
	first := cmp.Compare(y.Lag, x.Lag)
	if o == ByIdle {
		first = cmp.Compare(y.IdleMS, x.IdleMS)
	}
	return cmp.Or(first, cmp.Compare(x.Number, y.Number))
}

// List describes the n open sessions that come first in the order. It looks at each
// session by itself, so that no lock is held over all, and keeps no more than a few
// times n of them meanwhile. Stateless polls are only counted.
func (r *Registry) List(n int, by Order, now time.Time) wire.SessionList {
	list := wire.SessionList{Stateless: int(r.ephemeral.Load()), Sessions: []wire.ListedSession{}}
	r.sessions.each(func(s *Session) {
		listed, ok := s.listed(now)
		if !ok {
			return
		}
		list.Open++
		list.Sessions = append(list.Sessions, listed)
		if len(list.Sessions) >= 4*n {
			list.Sessions = by.first(list.Sessions, n)
		}
	})
	list.Sessions = by.first(list.Sessions, n)
	return list
}

// first sorts sessions and returns the first n.
func (o Order) first(sessions []wire.ListedSession, n int) []wire.ListedSession {
	slices.SortFunc(sessions, o.compare)
	return sessions[:min(n, len(sessions))]
}

// listed describes the session for operators; ok is false if it has none to
// describe: it has ended, or is a stateless poll's.
func (s *Session) listed(now time.Time) (l wire.ListedSession, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ephemeral || s.ended != nil {
		return l, false
	}
	l = wire.ListedSession{
		Number: s.number, AgeMS: now.Sub(s.opened).Milliseconds(), Polling: s.poll != nil,
		Subscriptions: len(s.subs), Queued: len(s.queue), Unacked: len(s.unacked),
	}
	if s.poll == nil {
		l.IdleMS = now.Sub(s.active).Milliseconds()
	}
	l.Lag, l.Worst = s.lagLocked()
	if l.Lag > 0 {
		l.Why = s.waitsForLocked()
	}
	return l, true
}

// lagLocked returns the lag of all subscriptions together, and the topic that lags
// most, by name the first of several.
func (s *Session) lagLocked() (sum uint64, worst string) {
	var most uint64
	for topic, sub := range s.subs {
		lag := sub.lacksLocked()
		sum += lag
		if lag > most || lag == most && lag > 0 && topic < worst {
			most, worst = lag, topic
		}
	}
	return sum, worst
}

// lacksLocked is the subscription's lag, but for own messages that it does not want.
func (sub *subscription) lacksLocked() uint64 {
	s := sub.session
	if s.except != "" && !sub.behind && sub.pace == nil && s.pinned == 0 {
		return 0 // it was offered all, and left out its own
	}
	return sub.stateLocked().Lag
}

// waitsForLocked returns what keeps a session that lags from what it lacks, or
// nothing if it is being served.
func (s *Session) waitsForLocked() string {
	switch {
	case len(s.unacked) >= s.config().Unacked && (s.poll == nil || !s.poll.slides):
		return WaitAck // whatever polls come
	case s.poll == nil:
		return WaitPoll
	case len(s.behind) > 0 && s.pinned > 0:
		return WaitReader
	case len(s.behind) > 0:
		return WaitHistory
	case s.pacedLocked():
		return WaitRate
	}
	return ""
}

// pacedLocked reports whether messages of some topic wait until their time has come.
func (s *Session) pacedLocked() bool {
	for _, sub := range s.subs {
		if sub.pace != nil && sub.pace.armed {
			return true
		}
	}
	return false
}

// What a session that lags waits for, as ListedSession says it. The list only grows.
const (
	WaitAck     = "ack"     // the number of unacked frames has reached its limit
	WaitPoll    = "poll"    // no poll is there
	WaitReader  = "reader"  // the queue is full: the client does not read fast enough
	WaitHistory = "history" // the session catches up from the topics' histories
	WaitRate    = "rate"    // its max_rate: the time has not come
)

// Waits returns every wait, for documents and tests.
func Waits() []string { return []string{WaitAck, WaitPoll, WaitReader, WaitHistory, WaitRate} }
