// Package session holds what the server knows of one subscriber: its subscriptions, the
// queue of frames to send, and the frames that are sent but not acked.
//
// A session's lock is taken before a topic's, never while one is held. The broker's
// fan-outs call Offer; requests call everything else.
package session

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Session is the state of one subscriber. All methods may be called concurrently.
//
// A poll parks on queue, a small buffered channel that fan-outs fill. If a frame does not
// fit, its topic's subscription falls behind: the session is offered no more of it until a
// poll has drained the queue and read the rest from the topic's history. So a fan-out
// never waits, an idle session costs little, and only messages that left the history are
// lost; a gap frame announces them.
//
// One poll at a time takes frames. It holds reading while it takes or parks, but not while
// it writes. A newer poll tells the older one to stop and waits for reading, which a
// stopped poll releases at once. Frames get their numbers and are noted as unacked before
// they are written. So if a write fails, or a newer poll arrives during it, nothing is lost:
// the ack of the next poll decides which frames are sent again.
type Session struct {
	id        string    // immutable; a capability: never log it
	number    uint64    // immutable; tells operators and Events the session without its id; 0: of one stateless poll
	acks      bool      // immutable; false: what is written counts as acked
	ephemeral bool      // immutable; for one stateless poll or connection, which ends it
	noEcho    bool      // immutable; the client's own messages are not sent: see moved.go
	client    string    // immutable; what the client calls itself; empty: nothing
	opened    time.Time // immutable
	peer      *Peer     // immutable; nil unless it is listed as a connection
	registry  *Registry // immutable

	grant atomic.Pointer[auth.Grant] // see Renew

	reading reading // held by the poll that takes or parks; taken before mu

	// Pending counts publishes in flight that name the session.
	Pending atomic.Int64

	link link         // in the wheel; guarded by the lock of its part
	slot atomic.Int64 // of the wheel, where link is

	mu       sync.Mutex // guards the fields below; taken before a topic's lock
	queue    queue      // what waits for a poll
	counted  int32      // bytes of the session, queue, window and notices in the memory account
	tellAt   uint32     // whole seconds after opened, when a stream gets moved positions; 0: they have not moved
	told     bool       // Events know the session
	away     bool       // a reader makes the client a member of some topic again; see Presence
	grace    uint32     // shortest of the topics of which the client is a member, or shorter, in ms; 0: of none
	subs     subscriptions
	patterns map[string]*pattern // by name; nil: none
	matched  *matched            // nil until the session has a pattern
	notices  []notice            // gaps to announce before all other frames
	behind   []*subscription     // those that catch up, in turns
	readers  readers             // who takes the frames
	window   window              // what was sent and is not acked
	ended    *wire.Problem       // why the session ended; nil while it lives
	active   time.Duration       // after opened; when it was opened, or a poll last began or ended
}

// nobody is the grant of a session without one: anonymous, without rights.
var nobody = &auth.Grant{}

func newSession(id string, o Opening, r *Registry, now time.Time) *Session {
	s := &Session{
		id: id, acks: o.Ack, noEcho: o.NoEcho, client: strings.Clone(o.Client), registry: r, opened: now,
	}
	s.grant.Store(cmp.Or(o.Grant, nobody))
	return s
}

// ID returns the session's id, a capability: never log it. An ephemeral session has none.
func (s *Session) ID() string {
	if s.ephemeral {
		return ""
	}
	return s.id
}

// Acks reports whether the session keeps what it sent until the client acks it.
func (s *Session) Acks() bool { return s.acks }

// endLocked ends the session, once: it stops the poll and all offers. The problem gets the
// acked positions unless the client ended the session itself or stayed away.
func (s *Session) endLocked(why *wire.Problem, reason string) {
	if s.ended != nil {
		return
	}
	s.ended = why
	if why != closedProblem && why != inactiveProblem {
		ended := *why
		ended.Positions = s.ackedPositionsLocked()
		s.ended = &ended
	}
	s.unsubscribeLocked()
	s.notices, s.behind, s.window.unacked = nil, nil, nil
	s.emptyQueueLocked(s.unpinLocked)
	s.countLocked()
	if s.readers.newest != nil {
		s.readers.newest.stopLocked(s.ended)
	}
	r := s.registry
	r.sessions.remove(s)
	r.freeSlot(s)
	if s.told {
		r.events.SessionEnded(s.number, s.Grant().Subject, reason)
	}
	if !s.ephemeral {
		r.ended.remember(s.id, s.ended)
		r.metrics.SessionsEnded.WithLabelValues(reason).Inc()
	}
}

// unsubscribeLocked ends all offers, and lets go of the topics: a connection may hold the session
// long after its end.
func (s *Session) unsubscribeLocked() {
	for _, p := range s.patterns {
		p.dropLocked()
	}
	for _, sub := range s.subs.all() {
		sub.dropLocked()
	}
	s.subs, s.patterns, s.matched = subscriptions{}, nil, nil
}

// visit does what is due: it tells a stream its moved positions, times out the parked poll, and ends
// the poll of an expired grant. It also tells Presence that the client is away. It returns when the
// session must be visited again, whether it had no poll for the inactivity timeout, and whether it
// should followMore.
func (s *Session) visit(now time.Time) (next time.Time, idle, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellMovedLocked(now)
	if s.readers.parked != nil && s.readers.due <= now.Sub(s.opened) {
		s.handOverLocked(nil, nil, 0, now)
	}
	switch {
	case s.readers.parked != nil:
		next = s.opened.Add(s.readers.due)
	case s.readers.newest != nil || s.ephemeral:
		next = now.Add(visitEvery)
	default:
		next = s.opened.Add(s.active + s.registry.cfg.Load().InactivityTimeout)
		idle = !next.After(now)
		s.departLocked(now)
	}
	if at := s.tellTimeLocked(); s.tellAt > tellNow && at.Before(next) {
		next = at
	}
	switch g := s.grant.Load(); {
	case !g.HasExpired(now):
		if !g.Expires.IsZero() && g.Expires.Before(next) {
			next = g.Expires
		}
	case s.readers.newest != nil:
		s.readers.newest.stopLocked(expiredProblem)
	}
	if since, can := s.canFollowMoreLocked(); can {
		if more = !since.After(now); more {
			since = now.Add(searchEvery)
		}
		if since.Before(next) {
			next = since
		}
	}
	return next, idle, more
}

// Subscriptions returns how many topics and patterns the session has.
func (s *Session) Subscriptions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subs.len() + len(s.patterns)
}

// State describes the session for its client: its subscriptions apart, by topic, each as
// it is when it is asked for, if it is still the session's then.
func (s *Session) State(now time.Time) (state wire.SessionState, subscriptions iter.Seq[wire.SubscriptionState]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state = wire.SessionState{
		Session: s.id, Ack: s.acks, Sent: s.window.sent, Acked: s.window.acked,
		Queued: len(s.queue.frames), Polling: s.readers.newest != nil, IdleMS: s.idleLocked(now),
		Patterns: slices.Sorted(maps.Keys(s.patterns)), Unfollowed: s.unfollowedLocked(),
	}
	subs := s.sortedLocked()
	return state, func(yield func(wire.SubscriptionState) bool) {
		for _, sub := range subs {
			s.mu.Lock()
			there := s.subs.get(sub.joined.Topic()) == sub
			var state wire.SubscriptionState
			if there {
				state = sub.stateLocked()
			}
			s.mu.Unlock()
			if there && !yield(state) {
				return
			}
		}
	}
}

// idleLocked returns for how many milliseconds the session has had no poll.
func (s *Session) idleLocked(now time.Time) int64 {
	if s.readers.newest != nil {
		return 0
	}
	return (now.Sub(s.opened) - s.active).Milliseconds()
}
