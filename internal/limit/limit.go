// Package limit decides whether a call may proceed. It limits how many calls are in
// flight, and how often calls come: from one address, from one principal, to the topics
// of one pattern, and from all clients.
//
// What all clients share (slots for calls and sessions) has a queue: a call waits for a
// slot, in order, for a limited time (Gate). What a single client uses too much of is
// refused at once (Refusal). A client that ignores refusals gets them late, so that its
// retries do not burden the others.
package limit

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A Limiter holds the limits of one daemon. All methods may be called concurrently.
// Its owner calls Sweep regularly.
type Limiter struct {
	metrics *metrics.Metrics

	inForce     atomic.Pointer[inForce]
	calls       *Gate
	sessions    *Gate
	connections atomic.Int64
	held        atomic.Int64  // refusals that wait, see Hold
	released    chan struct{} // closed once, by release
	release     func()

	addresses  table[netip.Addr]
	principals table[string]
}

// inForce are the settings until the next Reload.
type inForce struct {
	Config
	rates *rates
}

// New returns a Limiter with these settings.
func New(cfg Config, m *metrics.Metrics) *Limiter {
	cfg = cfg.withDefaults()
	l := &Limiter{
		metrics:  m,
		calls:    NewGate("calls", "limits.calls", cfg.Calls, cfg.WaitingCalls, cfg.Wait, m),
		sessions: NewGate("sessions", "limits.sessions", cfg.Sessions, cfg.PendingSessions, cfg.Wait, m),
		released: make(chan struct{}),
	}
	l.release = sync.OnceFunc(func() { close(l.released) })
	l.addresses.init()
	l.principals.init()
	l.inForce.Store(&inForce{Config: cfg, rates: l.newRates(cfg)})
	return l
}

// Reload puts cfg in force, also for calls that wait. A client that has more than cfg
// allows keeps it. If cfg changes a rate, all buckets are full again.
func (l *Limiter) Reload(cfg Config) {
	cfg = cfg.withDefaults()
	f := &inForce{Config: cfg, rates: l.inForce.Load().rates}
	if !f.rates.equal(cfg) {
		f.rates = l.newRates(cfg)
	}
	l.inForce.Store(f)
	l.calls.Set(cfg.Calls, cfg.WaitingCalls, cfg.Wait)
	l.sessions.Set(cfg.Sessions, cfg.PendingSessions, cfg.Wait)
}

// Sessions returns the gate whose slots are sessions.
func (l *Limiter) Sessions() *Gate { return l.sessions }

// Config returns the limits in force.
func (l *Limiter) Config() Config { return l.inForce.Load().Config }

// Who is the client that a call counts for. The zero Who has no limits of its own.
type Who struct {
	source    *Source // its address; nil: none
	principal string  // empty: anonymous
}

// As returns w with a principal.
func (w Who) As(principal string) Who { return Who{source: w.source, principal: principal} }

// Client returns the memory account of w's address, or nil. It stays valid while it
// holds bytes.
func (w Who) Client() *memory.Client {
	if w = w.current(); w.source == nil {
		return nil
	}
	return &w.source.client
}

// current returns w with the source that its address has now. A connection through a
// proxy may outlive its first source, which Sweep forgets while it counts nothing.
func (w Who) current() Who {
	if s := w.source; s != nil && s.forgotten.Load() {
		w.source = s.table.get(s.addr, time.Now())
	}
	return w
}

// Admit spends one call of w from the rates of its kind, or returns a *Refusal. It does
// not wait.
func (l *Limiter) Admit(kind Kind, w Who) error { return l.AdmitMany(kind, 1, w) }

// AdmitMany is Admit for n calls at once, all or none.
func (l *Limiter) AdmitMany(kind Kind, n int, w Who) error {
	return l.admit(kind, n, w, Address, All)
}

// AdmitAddress is the part of Admit for the rate of the address, before the principal is
// known. AdmitPrincipal is the rest.
func (l *Limiter) AdmitAddress(kind Kind, w Who) error { return l.admit(kind, 1, w, Address, Address) }

// AdmitPrincipal is the part of Admit for the rates of the principal and of all clients.
func (l *Limiter) AdmitPrincipal(kind Kind, w Who) error { return l.admit(kind, 1, w, Principal, All) }

// admit spends n calls in the scopes from first to last.
func (l *Limiter) admit(kind Kind, n int, w Who, first, last Scope) error {
	r := l.inForce.Load().rates
	// Fast path: no rate of this kind is limited.
	if !r.limits[kind] {
		return nil
	}
	now := time.Now()
	w = w.current()
	for scope := first; scope <= last; scope++ {
		if b := l.bucket(r, kind, scope, w, now); b != nil && !b.AllowN(now, n) {
			return l.refuse(w, now, rateName(kind, scope), tooOften(kind, n, scope, b, now))
		}
	}
	return nil
}

// Limits reports whether a kind has a rate, so that Admit could refuse it.
func (l *Limiter) Limits(kind Kind) bool { return l.inForce.Load().rates.limits[kind] }

// AdmitTopic spends one message from the rate of a topic's rule, or returns a *Refusal.
// The rule is named by its pattern; a topic without a rule has none.
func (l *Limiter) AdmitTopic(pattern string, w Who) error {
	rule := l.inForce.Load().rates.rules[pattern]
	if rule == nil {
		return nil
	}
	now := time.Now()
	if rule.bucket.AllowN(now, 1) {
		return nil
	}
	return l.refuse(w, now, rule.rateName(), tooOftenToTopics(rule, now))
}

// A Call is a call in flight. The zero Call counts nowhere.
type Call struct {
	gate   *Gate // nil: it has no slot
	source *Source
}

// Begin begins a call of w. It waits for a slot as Gate.Enter does. The error is a
// *wire.Problem, a *Refusal or that of ctx. Without an error, call End.
func (l *Limiter) Begin(ctx context.Context, w Who) (Call, error) {
	call, err := l.BeginElsewhere(w)
	if err != nil {
		return Call{}, err
	}
	if err := l.calls.Enter(ctx); err != nil {
		call.End()
		return Call{}, err
	}
	call.gate = l.calls
	return call, nil
}

// BeginElsewhere is Begin for a call that takes a slot of another gate. It counts only
// among the calls of its address.
func (l *Limiter) BeginElsewhere(w Who) (Call, error) {
	most := l.inForce.Load().AddressCalls
	w = w.current()
	if s := w.source; s != nil {
		if n := s.calls.Add(1); most > 0 && n > int64(most) {
			s.calls.Add(-1)
			return Call{}, l.refuse(w, time.Now(), "address_calls", tooMany("address_calls", "calls in flight", most))
		}
	}
	return Call{source: w.source}, nil
}

// End ends the call.
func (c Call) End() {
	if c.gate != nil {
		c.gate.Leave()
	}
	if c.source != nil {
		c.source.calls.Add(-1)
	}
}

// Sweep forgets addresses and principals that are in no way limited any more.
func (l *Limiter) Sweep(now time.Time) {
	l.addresses.sweep(now)
	l.principals.sweep(now)
}

// Gauges adds the state of all limits to g.
func (l *Limiter) Gauges(g *metrics.Gauges) {
	f := l.inForce.Load()
	g.Limits = append(g.Limits, l.calls.Gauge(), l.sessions.Gauge(),
		metrics.Limit{Name: "connections", Most: f.Connections, InUse: int(l.connections.Load())},
		metrics.Limit{Name: "address_connections", Most: f.AddressConnections, OfOne: true},
		metrics.Limit{Name: "address_calls", Most: f.AddressCalls, OfOne: true},
		metrics.Limit{Name: "pending_sessions", Most: f.PendingSessions, InUse: l.sessions.Gauge().Waiting},
		metrics.Limit{Name: "waiting_calls", Most: f.WaitingCalls, InUse: l.calls.Gauge().Waiting},
		metrics.Limit{Name: "pending_messages_per_session", Most: f.PendingMessages, OfOne: true},
	)
	g.Addresses = l.addresses.len()
}
