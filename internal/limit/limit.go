// Package limit answers whether a call may go on now: how many there may be at one
// time, and how often they may come, from one address, of one principal, to the
// topics of one pattern, and in all.
//
// There are two kinds of answer. What is scarce for everyone (places for calls, for
// sessions) is waited for in order, up to a stated time (Gate). What one client has
// too much of is refused at once, and a client that goes on without waiting as it was
// told hears of it late (Refusal), so that its loop costs nobody else.
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
// It needs Sweep now and then.
type Limiter struct {
	metrics *metrics.Metrics

	force       atomic.Pointer[force]
	calls       *Gate
	sessions    *Gate
	connections atomic.Int64
	held        atomic.Int64
	released    chan struct{} // closed once, by release
	release     func()

	addresses  table[netip.Addr]
	principals table[string]
}

// A force is the settings in force.
type force struct {
	Config
	rates *rates
}

// New returns a Limiter. Its metrics are to be registered with m.
func New(cfg Config, m *metrics.Metrics) *Limiter {
	cfg = cfg.withDefaults()
	l := &Limiter{
		metrics:  m,
		calls:    NewGate("calls", "limits.calls", cfg.Calls, cfg.WaitingCalls, cfg.Wait, m),
		sessions: NewGate("sessions", "limits.sessions", cfg.Sessions, cfg.PendingSessions, cfg.Wait, m),
	}
	l.released = make(chan struct{})
	l.release = sync.OnceFunc(func() { close(l.released) })
	l.addresses.init()
	l.principals.init()
	l.force.Store(&force{Config: cfg, rates: l.newRates(cfg)})
	return l
}

// Reload puts cfg in force, also for what waits. Who has more than it allows keeps
// that. If rates are others, everyone's begin anew.
func (l *Limiter) Reload(cfg Config) {
	cfg = cfg.withDefaults()
	f := &force{Config: cfg, rates: l.force.Load().rates}
	if !f.rates.are(cfg) {
		f.rates = l.newRates(cfg)
	}
	l.force.Store(f)
	l.calls.Set(cfg.Calls, cfg.WaitingCalls, cfg.Wait)
	l.sessions.Set(cfg.Sessions, cfg.PendingSessions, cfg.Wait)
}

// Sessions returns the gate whose places are those of sessions.
func (l *Limiter) Sessions() *Gate { return l.sessions }

// Config returns the limits in force.
func (l *Limiter) Config() Config { return l.force.Load().Config }

// Who is whom a call is counted for. The zero Who is nobody, who has no limits of its
// own.
type Who struct {
	source    *Source // its address; nil: of none
	principal string  // empty: anonymous
}

// As returns w with a principal.
func (w Who) As(principal string) Who { return Who{source: w.source, principal: principal} }

// Client returns where bytes that wait count against w's address, or nil. It is valid
// as long as some do.
func (l *Limiter) Client(w Who) *memory.Client {
	if w = l.Current(w); w.source == nil {
		return nil
	}
	return &w.source.client
}

// Current returns w with the source that its address has now: a connection through a
// proxy may last longer than the source that it began with, which is forgotten while
// nothing is counted in it.
func (l *Limiter) Current(w Who) Who {
	if s := w.source; s != nil && s.forgotten.Load() {
		w.source = l.addresses.get(s.addr, time.Now())
	}
	return w
}

// Admit spends one of what w may do of a kind, or returns a *Refusal. It does not
// wait.
func (l *Limiter) Admit(kind Kind, w Who) error { return l.AdmitMany(kind, 1, w) }

// AdmitMany is Admit for n at once, all or none.
func (l *Limiter) AdmitMany(kind Kind, n int, w Who) error {
	return l.admit(kind, n, w, Address, All)
}

// AdmitAddress is the part of Admit that asks about the address, before the principal is
// known. AdmitPrincipal is the rest.
func (l *Limiter) AdmitAddress(kind Kind, w Who) error { return l.admit(kind, 1, w, Address, Address) }

// AdmitPrincipal is the part of Admit that asks about the principal, and about all.
func (l *Limiter) AdmitPrincipal(kind Kind, w Who) error { return l.admit(kind, 1, w, Principal, All) }

// admit asks the scopes from first to last.
func (l *Limiter) admit(kind Kind, n int, w Who, first, last Scope) error {
	r := l.force.Load().rates
	// Fast path: no rate of this kind is limited.
	if !r.limits[kind] {
		return nil
	}
	now := time.Now()
	w = l.Current(w)
	for scope := first; scope <= last; scope++ {
		if b := l.bucket(r, kind, scope, w, now); b != nil && !b.AllowN(now, n) {
			return l.refuse(w, now, tooOften(kind, n, scope, b, now))
		}
	}
	return nil
}

// Limits reports whether anything is said of a kind: Admit could refuse it.
func (l *Limiter) Limits(kind Kind) bool { return l.force.Load().rates.limits[kind] }

// AdmitTopic spends one publish to a topic of what the rule that the topic goes by
// allows, or returns a *Refusal.
func (l *Limiter) AdmitTopic(topic string, w Who) error {
	r := l.force.Load().rates
	// Fast path: no rule has a rate.
	if !r.byTopic {
		return nil
	}
	rule := r.of(topic)
	if rule == nil {
		return nil
	}
	now := time.Now()
	if rule.bucket.AllowN(now, 1) {
		return nil
	}
	return l.refuse(w, now, tooOftenToTopics(rule, now))
}

// A Call is one in flight. The zero Call is none.
type Call struct {
	places *Gate // nil: it takes none
	source *Source
}

// Begin begins a call of w's, and waits for a place in order, as Gate.Enter does. The
// error is a *wire.Problem or a *Refusal, or ctx's; without one, End must follow.
func (l *Limiter) Begin(ctx context.Context, w Who) (Call, error) {
	call, err := l.BeginElsewhere(w)
	if err != nil {
		return Call{}, err
	}
	if err := l.calls.Enter(ctx); err != nil {
		call.End()
		return Call{}, err
	}
	call.places = l.calls
	return call, nil
}

// BeginElsewhere is Begin for a call that waits for a place of another kind: it counts
// among those that its address has.
func (l *Limiter) BeginElsewhere(w Who) (Call, error) {
	most := l.force.Load().AddressCalls
	w = l.Current(w)
	if s := w.source; s != nil {
		if n := s.calls.Add(1); most > 0 && n > int64(most) {
			s.calls.Add(-1)
			return Call{}, l.refuse(w, time.Now(), tooMany("address_calls", "calls in flight", most))
		}
	}
	return Call{source: w.source}, nil
}

// End ends the call.
func (c Call) End() {
	if c.places != nil {
		c.places.Leave()
	}
	c.source.endCall()
}

// Sweep forgets the addresses and principals that would begin anew as they are.
func (l *Limiter) Sweep(now time.Time) {
	l.addresses.sweep(now)
	l.principals.sweep(now)
}

// Gauges adds the limits' part to g.
func (l *Limiter) Gauges(g *metrics.Gauges) {
	f := l.force.Load()
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
