package session

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Registry holds the open sessions by id, and remembers why recent ones ended.
// All methods may be called concurrently. It needs Sweep, so often as timeouts are
// to be exact.
type Registry struct {
	cfg     atomic.Pointer[Config] // in force
	broker  *broker.Broker
	metrics *metrics.Metrics
	places  Places
	tag     string // of this node, the first part of every id

	sessions  *sessions
	numbers   atomic.Uint64 // of sessions that were opened or refused, ever
	open      atomic.Int64  // sessions that are not ephemeral
	ephemeral atomic.Int64

	draining atomic.Pointer[wire.Problem] // why no session is opened any more

	ended *endedSessions
}

// NewRegistry returns a registry without sessions.
func NewRegistry(cfg Config, b *broker.Broker, m *metrics.Metrics) *Registry {
	cfg = cfg.withDefaults()
	r := &Registry{broker: b, metrics: m, tag: randomText(3), sessions: newSessions(min(lookEvery, cfg.InactivityTimeout), time.Now()), ended: newEndedSessions(cfg.EndedRemembered)}
	if r.places = cfg.Places; r.places == nil {
		r.places = anyNumber{}
	}
	r.cfg.Store(&cfg)
	return r
}

// Reload puts cfg in force, but for what a session has taken already: the room of
// its queue; and for EndedRemembered and Places. A shorter inactivity timeout is noticed within
// the longer of both.
func (r *Registry) Reload(cfg Config) {
	cfg = cfg.withDefaults()
	r.cfg.Store(&cfg)
}

// randomText returns n random bytes in base64url (RFC 4648, section 5).
func randomText(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: crypto/rand
	return base64.RawURLEncoding.EncodeToString(b)
}

// idBytes is how much of an id is random: 128 bits cannot be guessed.
const idBytes = 16

// An Opening is what a session begins with.
type Opening struct {
	Topics []wire.Start
	Ack    bool   // it keeps what was sent until that is acked
	Except string // the client whose messages it is not sent; empty: none
}

// Open opens a session, once there is a place for it, and returns the positions that
// its client has to know, as Change does. The error is a *wire.Problem, or ctx's, if
// that ends while a place is waited for.
func (r *Registry) Open(ctx context.Context, o Opening, now time.Time) (*Session, []wire.Position, error) {
	if err := r.checkMemory(memory.High); err != nil { // and again once it has waited
		return nil, nil, err
	}
	if err := r.places.Enter(ctx); err != nil {
		return nil, nil, err
	}
	r.open.Add(1)
	s := newSession(r.tag+"."+randomText(idBytes), o, r, now)
	s.number, s.opened = r.numbers.Add(1), now
	s, positions, err := r.start(s, o.Topics)
	if err == nil {
		r.metrics.SessionsOpened.Inc()
	}
	return s, positions, err
}

// OpenEphemeral is Open for one stateless poll: the session has no id that a
// client could name, acks nothing, and the caller must End it.
func (r *Registry) OpenEphemeral(o Opening, now time.Time) (*Session, []wire.Position, error) {
	if most := r.cfg.Load().MaxSessions; r.ephemeral.Add(1) > int64(most) {
		r.ephemeral.Add(-1)
		r.metrics.Limited.WithLabelValues(statelessSessions).Inc()
		return nil, nil, wire.NewProblem(wire.CodeOverloaded, "retry later, or raise limits.sessions",
			"the daemon holds %d stateless polls and connections that go both ways, as many as it may", most).Retry(time.Second)
	}
	o.Ack = false
	s := newSession("_"+randomText(idBytes), o, r, now)
	s.ephemeral = true
	return r.start(s, o.Topics)
}

// statelessSessions is how metrics label the bound of ephemeral sessions, which is
// that of the others.
const statelessSessions = "stateless_sessions"

// gone gives the place of s up.
func (r *Registry) gone(s *Session) {
	if s.ephemeral {
		r.ephemeral.Add(-1)
		return
	}
	r.open.Add(-1)
	r.places.Leave()
}

// start subscribes a new session, which has its place, and lists it.
func (r *Registry) start(s *Session, topics []wire.Start) (*Session, []wire.Position, error) {
	refused := memory.High
	if s.ephemeral { // who comes back with its positions may have been here for long
		refused = memory.Critical
	}
	if err := r.checkMemory(refused); err != nil {
		r.gone(s)
		return nil, nil, err
	}
	positions, err := s.Change(topics, nil)
	if err != nil {
		r.gone(s)
		return nil, nil, err
	}
	r.sessions.put(s)
	// After the store: either BeginDrain finds the session, or it is seen here that
	// the daemon drains.
	if why := r.unlistEnded(s); why != nil {
		return nil, nil, why
	}
	if why := r.draining.Load(); why != nil {
		r.end(s, why, EndedDraining)
		return nil, nil, why
	}
	return s, positions, nil
}

// checkMemory returns an error while the daemon is so short of memory, or shorter. Those
// sessions that are open go on.
func (r *Registry) checkMemory(short memory.Pressure) error {
	if r.broker.Memory().Pressure() < short {
		return nil
	}
	r.metrics.Limited.WithLabelValues("memory").Inc()
	return wire.NewProblem(wire.CodeOverloaded, "retry later, or give the daemon more memory (memory.budget, GOMEMLIMIT)",
		"the daemon is short of memory and opens no sessions").Retry(5 * time.Second)
}

// unlistEnded takes a session off the list that ended before it was there: its topics
// may have too much for it at once. It returns why.
func (r *Registry) unlistEnded(s *Session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		return nil
	}
	r.sessions.remove(s)
	return s.ended
}

// Get returns the open session of that id. The error is a *wire.Problem:
// session_ended, session_unknown, or draining.
func (r *Registry) Get(id string) (*Session, error) { return r.GetBytes([]byte(id)) }

// GetBytes is Get for an id that is not a string yet. It allocates nothing.
func (r *Registry) GetBytes(id []byte) (*Session, error) {
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
	return nil, wire.NewProblem(wire.CodeSessionUnknown, "open a session from your positions",
		"no session has this id, or it ended too long ago to be remembered")
}

// Reasons for which a session ends, as metrics label them.
const (
	EndedClosed   = "closed"
	EndedInactive = "inactive"
	EndedDraining = "draining"
	EndedSlow     = "slow"   // it fell behind on a topic whose policy is to disconnect
	EndedTopics   = "topics" // its patterns match more topics than it may hold
)

var (
	closedProblem = wire.NewProblem(wire.CodeSessionEnded, "open a session from your positions",
		"the session was closed by its client")
	inactiveProblem = wire.NewProblem(wire.CodeSessionEnded, "open a session from your positions, and poll more often than inactivity_timeout_ms",
		"no poll came for the inactivity timeout")
)

// ClosedByClient reports whether err says that a session ended because its client
// wanted it to.
func ClosedByClient(err error) bool {
	p, ok := errors.AsType[*wire.Problem](err)
	return ok && p == closedProblem
}

// End ends s because its client says so.
func (r *Registry) End(s *Session) { r.end(s, closedProblem, EndedClosed) }

func (r *Registry) end(s *Session, why *wire.Problem, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.endLocked(s, why, reason)
}

// endLocked is end under the session's lock.
func (r *Registry) endLocked(s *Session, why *wire.Problem, reason string) {
	if !s.endLocked(why) {
		return
	}
	r.sessions.remove(s)
	r.gone(s)
	if s.ephemeral {
		return
	}
	r.ended.remember(s.id, s.ended)
	r.metrics.SessionsEnded.WithLabelValues(reason).Inc()
}

// Sweep tells the polls that are parked on their connections long enough, and ends
// the sessions that no poll came to for the inactivity timeout.
func (r *Registry) Sweep(now time.Time) {
	r.sessions.turn(now, func(s *Session) time.Time {
		next, idle := s.look(now)
		if idle {
			r.end(s, inactiveProblem, EndedInactive)
		}
		return next
	})
}

// lookEvery is how long a session may go without being looked at, at most: not so
// long that an end of its activity is noticed late, which has its own timeout.
const lookEvery = 16 * time.Second

// A Drain ends the sessions that were open when it began. It is for one goroutine;
// sessions that it has not come to are served as ever, and may end by themselves.
type Drain struct {
	registry *Registry
	why      *wire.Problem
	left     []*Session
}

// Drain is BeginDrain and the end of all at once.
func (r *Registry) Drain(why *wire.Problem) {
	d := r.BeginDrain(why)
	d.End(d.Left())
}

// BeginDrain refuses new sessions from now on, for the reason given, and those of
// stateless polls, too. Those that are open are for the Drain to end, in the order of
// their random ids' hashes: clients that came together should not leave together.
func (r *Registry) BeginDrain(why *wire.Problem) *Drain {
	r.draining.Store(why)
	d := &Drain{registry: r, why: why}
	r.sessions.each(func(s *Session) { d.left = append(d.left, s) }) // whoever is listed later ends itself
	return d
}

// Draining returns why no session is opened any more, or nil.
func (r *Registry) Draining() *wire.Problem { return r.draining.Load() }

// Left returns how many sessions are left, with those that have ended by
// themselves.
func (d *Drain) Left() int { return len(d.left) }

// End ends n of the sessions that are left, or all there are; none if n is negative.
// Their polls are told why, with the positions that each has acked.
func (d *Drain) End(n int) {
	n = min(max(n, 0), len(d.left))
	for _, s := range d.left[:n] {
		d.registry.end(s, d.why, EndedDraining)
	}
	clear(d.left[:n])
	d.left = d.left[n:]
}

// Config returns the bounds in force.
func (r *Registry) Config() Config { return *r.cfg.Load() }

// Gauges adds the sessions' part to g.
func (r *Registry) Gauges(g *metrics.Gauges) {
	g.Sessions = int(r.open.Load())
	g.Limits = append(g.Limits, metrics.Limit{Name: statelessSessions, Most: r.cfg.Load().MaxSessions, InUse: int(r.ephemeral.Load())})
	r.sessions.each(func(s *Session) { s.gauges(g) })
}

func (s *Session) gauges(g *metrics.Gauges) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.Queued += len(s.queue)
	g.Behind += len(s.behind)
	g.Unacked += len(s.unacked)
}

// endedSessions remembers why the last sessions ended, a bounded number of them,
// the oldest forgotten first.
type endedSessions struct {
	mu      sync.Mutex
	reasons map[string]*wire.Problem
	ring    []string // ids in the order they ended; "" where there is none yet
	next    int      // index in ring of the oldest
}

func newEndedSessions(n int) *endedSessions {
	return &endedSessions{reasons: make(map[string]*wire.Problem), ring: make([]string, n)}
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
