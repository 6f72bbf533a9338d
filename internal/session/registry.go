package session

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Registry holds the open sessions by id, and remembers why recent ones ended. All
// methods may be called concurrently. Its owner must call Sweep as often as timeouts are
// to be exact.
type Registry struct {
	cfg     atomic.Pointer[Config] // in force
	broker  *broker.Broker
	metrics *metrics.Metrics
	slots   Slots
	events  Events                 // nil: nobody listens
	revoked func(*auth.Grant) bool // nil: none is
	node    string                 // random; the first part of every id

	forbidden func(subject string) auth.Prohibitions // nil: nothing is

	presence  Presence // nil: nobody asks
	sessions  *wheel
	numbers   atomic.Uint64 // sessions opened or refused, ever
	open      atomic.Int64  // sessions that are not ephemeral
	ephemeral atomic.Int64

	draining atomic.Pointer[wire.Problem] // why no more sessions are opened, or nil
	ended    *endedSessions
}

// NewRegistry returns a registry without sessions.
func NewRegistry(cfg Config, b *broker.Broker, m *metrics.Metrics) *Registry {
	cfg = cfg.WithDefaults()
	r := &Registry{
		broker: b, metrics: m, slots: cfg.Slots, events: cfg.Events, revoked: cfg.Revoked, forbidden: cfg.Forbidden, presence: cfg.Presence, node: randomText(3),
		sessions: newWheel(min(visitEvery, cfg.InactivityTimeout), time.Now()),
		ended:    &endedSessions{reasons: make(map[string]*wire.Problem), ring: make([]string, cfg.EndedRemembered)},
	}
	r.cfg.Store(&cfg)
	return r
}

// Reload puts cfg in force, except EndedRemembered, Slots, Events, Presence, Revoked, Forbidden, and the
// queues that sessions have. A shorter inactivity timeout takes effect within the longer of the two.
// Topics whose rules in the broker have changed get or lose presence.
func (r *Registry) Reload(cfg Config) {
	cfg = cfg.WithDefaults()
	r.cfg.Store(&cfg)
	r.sessions.each(func(s *Session) {
		s.reappear()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.searchLaterLocked() // more may fit
	})
}

// Config returns the configuration in force.
func (r *Registry) Config() Config { return *r.cfg.Load() }

// randomText returns n random bytes in base64url (RFC 4648, section 5).
func randomText(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: crypto/rand
	return base64.RawURLEncoding.EncodeToString(b)
}

// idBytes is how much of an id is random: nobody can guess 128 bits.
const idBytes = 16

// An Opening says how a session begins.
type Opening struct {
	Topics []wire.Start
	Grant  *auth.Grant // of the client; nil: of an anonymous one
	Ack    bool        // keep what was sent until the client acks it
	Client string      // what the client calls itself; empty: nothing
	NoEcho bool        // do not send the client's own messages
	Brief  bool        // for one stateless poll: Events are not told
	Peer   *Peer       // of a connection without an id, for operators; nil: it is not listed

	Address *memory.Client // the account of the client's address, which gets slots in turn; nil: none

	// Turn waits for the turn of a session whose topics take long to join. It is called when the
	// session has its slot. Without an error, end is called. Nil: the session does not wait.
	Turn func() (end func(), err error)
}

// A Peer is the client of a connection, as a List shows it. It is immutable.
type Peer struct {
	Transport string
	Address   string
	Agent     unique.Handle[string] // many clients have the same
}

// Open waits for a slot and opens a session. It returns positions as Change does. The
// error is a *wire.Problem, or ctx's if that ends the wait.
func (r *Registry) Open(ctx context.Context, o Opening, now time.Time) (*Session, []wire.Position, error) {
	if err := r.checkMemory(memory.High); err != nil { // start checks again after the wait
		return nil, nil, err
	}
	if err := r.slots.Enter(ctx, o.Address); err != nil {
		return nil, nil, err
	}
	r.open.Add(1)
	s := newSession(r.node+"."+randomText(idBytes), o, r, now)
	s.number = r.numbers.Add(1)
	s, positions, err := r.start(s, o)
	if err == nil {
		r.metrics.SessionsOpened.Inc()
	}
	return s, positions, err
}

// OpenEphemeral opens a session without an id, for one stateless poll or connection. It
// keeps nothing for acks. The caller must End it.
func (r *Registry) OpenEphemeral(o Opening, now time.Time) (*Session, []wire.Position, error) {
	if most := r.cfg.Load().MaxSessions; r.ephemeral.Add(1) > int64(most) {
		r.ephemeral.Add(-1)
		r.metrics.Limited.WithLabelValues(statelessSessions).Inc()
		return nil, nil, problem.New(wire.CodeOverloaded, "retry later, or raise limits.sessions",
			"the daemon can have at most %d stateless polls and two-way connections", most).Retry(time.Second)
	}
	o.Ack = false
	s := newSession("_"+randomText(idBytes), o, r, now)
	s.ephemeral, s.peer = true, o.Peer
	if !o.Brief {
		s.number = r.numbers.Add(1)
	}
	return r.start(s, o)
}

// statelessSessions is the label of the bound on ephemeral sessions in metrics.
const statelessSessions = "stateless_sessions"

// start subscribes and lists a new session. If it fails, it frees the session's slot.
func (r *Registry) start(s *Session, o Opening) (*Session, []wire.Position, error) {
	refused := memory.High
	if s.ephemeral { // its client may have been polling for long
		refused = memory.Critical
	}
	var positions []wire.Position
	err := r.checkMemory(refused)
	endTurn := func() {}
	if err == nil && o.Turn != nil {
		endTurn, err = o.Turn()
	}
	if err == nil {
		positions, err = s.Change(o.Topics, nil, nil)
		endTurn()
	}
	if err != nil {
		r.freeSlot(s)
		return nil, nil, err
	}
	if err := r.list(s); err != nil {
		return nil, nil, err
	}
	return s, positions, nil
}

// list makes a session known by its id, unless it has ended: by a drain, by a revocation, or
// at once by more topics than it can have.
func (r *Registry) list(s *Session) error {
	r.sessions.put(s)
	if why := r.draining.Load(); why != nil { // after put: or BeginDrain finds the session
		r.end(s, why, endedDraining)
	}
	r.endIfRevoked(s)      // after put: or EndRevoked finds the session
	s.endWhatIsForbidden() // after put: or Forbid finds the session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.countLocked()
		if s.number != 0 && r.events != nil {
			r.events.SessionOpened(s.number, s.Grant().Subject)
			s.told = true
		}
		return nil
	}
	r.sessions.remove(s)
	return s.ended
}

func (r *Registry) freeSlot(s *Session) {
	if s.ephemeral {
		r.ephemeral.Add(-1)
		return
	}
	r.open.Add(-1)
	r.slots.Leave()
}

// checkMemory returns an error at the given memory pressure or above.
func (r *Registry) checkMemory(refused memory.Pressure) error {
	if r.broker.Memory().Pressure() < refused {
		return nil
	}
	r.metrics.Limited.WithLabelValues("memory").Inc()
	return problem.New(wire.CodeOverloaded, "retry later, or give the daemon more memory (memory.budget, GOMEMLIMIT)",
		"the daemon is short of memory and opens no more sessions").Retry(5 * time.Second)
}

// Get returns the open session of that id, and does not allocate. The error is a
// *wire.Problem: session_ended, session_unknown or draining.
func (r *Registry) Get(id []byte) (*Session, error) {
	if s := r.sessions.get(id); s != nil && !s.ephemeral {
		return s, nil
	}
	why, draining := r.ended.why(string(id)), r.draining.Load()
	switch {
	case draining != nil && (why == nil || why.Code != draining.Code):
		return nil, draining
	case why != nil:
		return nil, why
	}
	return nil, problem.New(wire.CodeSessionUnknown, "open a session from your positions",
		"no session has this id; it may have ended long ago")
}

// Reasons for the end of a session, as labels in metrics.
const (
	endedClosed   = "closed"
	endedInactive = "inactive"
	endedDraining = "draining"
	endedSlow     = "slow"    // it fell behind on a topic with the policy disconnect
	endedTopics   = "topics"  // too many topics were forbidden
	endedRevoked  = "revoked" // its grant was revoked, or an operator or the application ended it
)

var (
	closedProblem = problem.New(wire.CodeSessionEnded, "open a session from your positions",
		"the session was closed by its client")
	inactiveProblem = problem.New(wire.CodeSessionEnded, "open a session from your positions, and poll more often than inactivity_timeout_ms",
		"the session had no poll within its inactivity timeout")
)

// ClosedByClient reports whether err says that the client closed its session.
func ClosedByClient(err error) bool {
	p, ok := errors.AsType[*wire.Problem](err)
	return ok && p == closedProblem
}

// End ends a session because its client is done with it.
func (r *Registry) End(s *Session) { r.end(s, closedProblem, endedClosed) }

func (r *Registry) end(s *Session, why *wire.Problem, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(why, reason)
}

// Sweep times out parked polls that are due, and ends the sessions that had no poll for
// the inactivity timeout. It has some sessions follow topics that they had left out. It
// publishes changes of presence, unless the registry drains:
// clients that leave a stopping daemon reconnect to the next one.
func (r *Registry) Sweep(now time.Time) {
	var search *broker.Search // one for all, so that a call of Sweep takes only some milliseconds for it
	r.sessions.visitDue(now, func(s *Session) time.Time {
		next, idle, more := s.visit(now)
		if more && search == nil {
			search = r.newSearch()
		}
		switch {
		case idle:
			r.end(s, inactiveProblem, endedInactive)
		case more && search.IsSpent():
			next = now // the next call has it before those that have searched
		case more:
			s.followMore(search, now)
		}
		return next
	})
	if r.presence != nil && r.Draining() == nil {
		r.presence.Sweep(now)
	}
}

// visitEvery is the longest time between two visits of a session, unless the inactivity
// timeout is shorter: a shorter one that a reload brings must be noticed.
const visitEvery = 16 * time.Second

// Gauges adds the state of the sessions to g.
func (r *Registry) Gauges(g *metrics.Gauges) {
	g.Sessions = int(r.open.Load())
	g.Limits = append(g.Limits, metrics.Limit{Name: statelessSessions, Most: r.cfg.Load().MaxSessions, InUse: int(r.ephemeral.Load())})
	r.sessions.each(func(s *Session) {
		s.mu.Lock()
		defer s.mu.Unlock()
		g.Queued += len(s.queue.frames)
		g.Behind += len(s.behind)
		g.Unfollowed += s.unfollowedLocked()
		g.Unacked += len(s.window.unacked)
	})
}

// A Drain ends the sessions that were open when it began. Only one goroutine may use it.
// Until its end a session works as before.
type Drain struct {
	registry *Registry
	why      *wire.Problem
	left     []*Session
}

// BeginDrain refuses new sessions from now on with the given problem. The Drain ends the
// open ones in random order: clients that came together should not leave together.
func (r *Registry) BeginDrain(why *wire.Problem) *Drain {
	r.draining.Store(why)
	d := &Drain{registry: r, why: why}
	r.sessions.each(func(s *Session) { d.left = append(d.left, s) }) // list ends later ones
	return d
}

// Draining returns why no more sessions are opened, or nil.
func (r *Registry) Draining() *wire.Problem { return r.draining.Load() }

// Left returns how many sessions the Drain has not come to.
func (d *Drain) Left() int { return len(d.left) }

// End ends up to n of the sessions that are left. Their polls get the problem, with the
// positions that the client has acked.
func (d *Drain) End(n int) {
	n = min(max(n, 0), len(d.left))
	for _, s := range d.left[:n] {
		d.registry.end(s, d.why, endedDraining)
	}
	clear(d.left[:n])
	d.left = d.left[n:]
}

// endedSessions remembers why the newest sessions ended.
type endedSessions struct {
	mu      sync.Mutex
	reasons map[string]*wire.Problem
	ring    []string // ids in the order of their end; empty where unused
	next    int      // index in ring of the oldest
}

func (e *endedSessions) remember(id string, why *wire.Problem) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.ring[e.next]; old != "" {
		delete(e.reasons, old)
	}
	e.ring[e.next] = id
	e.next = (e.next + 1) % len(e.ring)
	e.reasons[id] = why
}

// why returns why the session ended, or nil if that is not remembered.
func (e *endedSessions) why(id string) *wire.Problem {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reasons[id]
}
