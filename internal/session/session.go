// Package session is one subscriber's stay: what it subscribed to, the queue of
// what is to be sent, and what was sent and not yet acked.
//
// A session's lock is taken before a topic's, never inside one. Offers come from
// the broker's fan-outs; everything else is called by requests.
package session

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Session is one subscriber's stay. All methods may be called concurrently.
//
// A poll parks on queue, a small buffered channel that fan-outs fill. What does
// not fit turns its topic's subscription to behind: nothing more of it is
// offered until the poll, having drained the queue, has read the rest from the
// topic's history. So a fan-out never waits, an idle session costs little, and
// only what the history let go of is lost, announced by a gap.
//
// One poll at a time takes frames. It holds reading while it takes or parks and
// gives it up to write; a newer poll first tells it to stop and then waits for
// reading, which a stopped poll gives up at once, or no longer asks for. Frames are numbered and noted
// as unacked before they are written, so a write that fails, or a poll that was
// replaced while it wrote, costs nothing: the next poll's ack decides what is
// sent again.
type Session struct {
	id        string    // immutable; a capability: never log it
	acks      bool      // immutable; false: the client trusts its connections
	ephemeral bool      // immutable; of one stateless poll, which alone ends it
	except    string    // immutable; the client whose messages it is not sent; empty: none
	number    uint64    // immutable; in place of the id for operators; 0 of a stateless poll
	opened    time.Time // immutable; as number
	in        *Registry

	// queue is filled by fan-outs under mu and drained by the poll that holds
	// reading. Never closed; made under mu and with reading, or before anyone reads.
	queue chan queued

	reading chan struct{} // holds one token, of the poll that takes or parks; before mu

	// Pending is how many publishes that name the session are in flight.
	Pending atomic.Int64

	place place        // in in.sessions; guarded by the part's lock
	slot  atomic.Int64 // in which place is

	mu       sync.Mutex // guards the fields below; before a topic's lock
	pinned   int        // bytes of the frames in queue and carried, which are pinned
	waiting  int64      // Unix nanoseconds; since when none of those was taken
	carried  queued     // taken from queue and not sent; goes first
	counted  int        // bytes of queue and unacked that the broker's budget has
	subs     map[string]*subscription
	patterns map[string]*pattern // by name; nil: none
	notices  []*subscription     // of patterns that have a gap to tell; before anything else
	behind   []*subscription     // those that catch up, in turns
	poll     *Poll               // the newest, until it ends
	due      time.Time           // when the parked poll has waited long enough
	parked   *Poll               // that poll, while frames may be handed to its connection; then queue and behind are empty, or it was full when it parked
	ended    *wire.Problem       // why the session ended; nil while it lives
	active   time.Time           // when it was opened, or a poll last came or went
	unacked  []sent              // frames acked+1 .. sent, unless trusted
	sent     uint64              // frames sent, ever
	acked    uint64              // of those, how many the client has said it has
}

func newSession(id string, o Opening, r *Registry, now time.Time) *Session {
	return &Session{
		id: id, acks: o.Ack, except: strings.Clone(o.Except), in: r,
		reading: make(chan struct{}, 1),
		subs:    make(map[string]*subscription),
		active:  now,
	}
}

// ID returns the session's id, a capability: never log it. It is empty for the
// session of a stateless poll.
func (s *Session) ID() string {
	if s.ephemeral {
		return ""
	}
	return s.id
}

// Acks reports whether the session keeps what it sent until it is acked.
func (s *Session) Acks() bool { return s.acks }

func (s *Session) config() *Config { return s.in.cfg.Load() }

// endLocked ends the session once: the poll is told why, and nothing is offered
// any more. It reports whether it was this call that ended it.
func (s *Session) endLocked(why *wire.Problem) bool {
	if s.ended != nil {
		return false
	}
	s.ended = why
	if why != closedProblem && why != inactiveProblem {
		s.ended = withPositions(why, s.ackedPositionsLocked())
	}
	for _, f := range s.patterns {
		f.dropLocked()
	}
	for _, sub := range s.subs {
		sub.dropLocked()
	}
	s.notices, s.behind, s.unacked = nil, nil, nil
	s.emptyQueueLocked()
	s.countLocked()
	if s.poll != nil {
		s.poll.stopLocked(s.ended)
	}
	return true
}

func withPositions(p *wire.Problem, positions []wire.Position) *wire.Problem {
	q := *p
	q.Positions = positions
	return &q
}

// look tells a parked poll that it has waited long enough, if it has. It returns
// when to look again at the latest, and whether no poll was there for the
// inactivity timeout.
func (s *Session) look(now time.Time) (next time.Time, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellIfDueLocked(now)
	switch {
	case s.parked != nil:
		return s.due, false
	case s.poll != nil || s.ephemeral:
		return now.Add(lookEvery), false
	}
	next = s.active.Add(s.config().InactivityTimeout)
	return next, !next.After(now)
}

// State describes the session for its client.
func (s *Session) State(now time.Time) wire.SessionState {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := wire.SessionState{
		Session: s.id, Ack: s.acks, Sent: s.sent, Acked: s.acked,
		Queued: len(s.queue), Polling: s.poll != nil,
		Subscriptions: make([]wire.SubscriptionState, 0, len(s.subs)),
	}
	if s.poll == nil {
		state.IdleMS = now.Sub(s.active).Milliseconds()
	}
	state.Patterns = slices.Sorted(maps.Keys(s.patterns))
	for _, sub := range s.sortedLocked() {
		state.Subscriptions = append(state.Subscriptions, sub.stateLocked())
	}
	return state
}
