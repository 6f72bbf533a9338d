// Package limit decides whether a call may proceed. It limits how many calls are in
// flight, and how often calls come: from one address, from one principal, to the topics
// of one pattern, and from all clients.
//
// Slots for calls and sessions are shared by all clients. When none is free, a call waits
// for one, for a limited time, and addresses get theirs in turn (Gate). Calls that only read
// have slots of their own, so that they cannot hold up publishes. A call that exceeds another
// limit is refused at once (Refusal). A client that ignores refusals gets them late, so that
// its retries do not burden the others.
package limit

import (
	"context"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A Limiter holds the limits of one daemon. All methods may be called concurrently.
// Its owner calls Sweep regularly.
type Limiter struct {
	metrics *metrics.Metrics

	inForce     atomic.Pointer[inForce]
	calls       *Gate // for publishes and changes
	reads       *Gate // for calls that only read
	signatures  *Gate // checks of the signatures of tokens
	turns       *Gate // long work that requests and commands cause
	sessions    *Gate
	connections atomic.Int64
	held        atomic.Int64  // refusals that wait, see Hold
	released    chan struct{} // closed once, by release
	release     func()

	addresses  table
	principals table
	all        Source
}

// inForce are the settings until the next Reload.
type inForce struct {
	Config
	rates *rates
}

// rates are one version of the rates. With another version, all buckets are full again.
type rates struct {
	of    Rates
	rules map[string]*ruled // rules with a rate, by pattern
}

// A ruled is a rule with its bucket.
type ruled struct {
	Rule
	bucket *rate.Limiter
}

// newRates returns rates with full buckets. Their counters begin at 0, unless they exist.
func (l *Limiter) newRates(cfg Config) *rates {
	r := &rates{of: cfg.Rates, rules: make(map[string]*ruled)}
	for _, kind := range Kinds() {
		for _, scope := range kind.Scopes() {
			if r.of[kind][scope].PerSecond > 0 {
				l.metrics.Limited.WithLabelValues(rateName(kind, scope))
			}
		}
	}
	for _, rule := range cfg.Rules {
		if rule.Rate.PerSecond > 0 {
			r.rules[rule.Pattern] = &ruled{rule, rule.Rate.bucket()}
			l.metrics.Limited.WithLabelValues(rule.rateName())
		}
	}
	return r
}

// New returns a Limiter with these settings.
func New(cfg Config, m *metrics.Metrics) *Limiter {
	cfg = cfg.WithDefaults()
	l := &Limiter{
		metrics:    m,
		calls:      NewGate("calls", "limits.calls", cfg.Calls, cfg.WaitingCalls, cfg.Wait, m),
		reads:      NewGate("reads", "limits.calls", cfg.Calls, cfg.WaitingCalls, cfg.Wait, m),
		signatures: NewGate("signatures", "", atATime(), cfg.WaitingCalls, cfg.Wait, m),
		turns:      NewGate("turns", "", atATime(), math.MaxInt, math.MaxInt64, m),
		sessions:   NewGate("sessions", "limits.sessions", cfg.Sessions, cfg.PendingSessions, cfg.Wait, m),
		released:   make(chan struct{}),
	}
	l.release = sync.OnceFunc(func() { close(l.released) })
	l.addresses.init()
	l.principals.init()
	l.inForce.Store(&inForce{Config: cfg, rates: l.newRates(cfg)})
	return l
}

// Reload applies cfg, also to calls that wait. A client that has more than cfg allows
// keeps it. If cfg changes a rate, all buckets are full again.
func (l *Limiter) Reload(cfg Config) {
	cfg = cfg.WithDefaults()
	old := l.inForce.Load()
	f := &inForce{Config: cfg, rates: old.rates}
	if old.Rates != cfg.Rates || !slices.Equal(old.Rules, cfg.Rules) {
		f.rates = l.newRates(cfg)
	}
	l.inForce.Store(f)
	l.calls.Set(cfg.Calls, cfg.WaitingCalls, cfg.Wait)
	l.reads.Set(cfg.Calls, cfg.WaitingCalls, cfg.Wait)
	l.signatures.Set(atATime(), cfg.WaitingCalls, cfg.Wait)
	l.sessions.Set(cfg.Sessions, cfg.PendingSessions, cfg.Wait)
}

// atATime is the number of slots for checks of signatures, and again for long work: half the
// cores, at least one. So neither kind alone keeps all cores from deliveries.
func atATime() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// Sessions returns the gate whose slots are sessions.
func (l *Limiter) Sessions() *Gate { return l.sessions }

// Signatures returns the gate of checks of signatures.
func (l *Limiter) Signatures() *Gate { return l.signatures }

// Turns returns the gate of long work, such as decoding a large body or encoding a list. A caller
// waits until its context ends. That needs no other bound: each request or connection waits for at
// most one turn, and counts as memory or holds a slot.
func (l *Limiter) Turns() *Gate { return l.turns }

// Config returns the limits in force.
func (l *Limiter) Config() Config { return l.inForce.Load().Config }

// Who is the client that a call counts for. The zero Who has no limits of its own.
type Who struct {
	source    *Source // its address; nil: none
	Principal string  // empty: anonymous
}

// Who returns the client that a request on the connection counts for. forwarded holds the
// lines of X-Forwarded-For. If the peer is a trusted proxy, the client is the last
// address in it that is not a trusted proxy. Otherwise, or if that address cannot be
// read, it is the peer. Nothing reads Forwarded (RFC 7239).
func (c *Connection) Who(forwarded []string) Who {
	if c == nil {
		return Who{}
	}
	if c.trusted && len(forwarded) > 0 {
		if addr, ok := c.limiter.inForce.Load().clientOf(forwarded); ok {
			return c.limiter.WhoAt(addr)
		}
	}
	return Who{source: c.source}
}

// WhoAt returns the client that a request from addr counts for, without a Connection.
func (l *Limiter) WhoAt(addr netip.Addr) Who {
	return Who{source: l.addresses.get(key{addr: keyOf(addr)}, time.Now())}
}

// Client returns the memory account of w's address, or nil. It stays valid while it
// holds bytes.
func (w Who) Client() *memory.Client {
	if w = w.current(); w.source == nil {
		return nil
	}
	return &w.source.client
}

// Address returns the address that w is counted for, or "" if the daemon does not know it.
func (w Who) Address() string {
	if w.source == nil || !w.source.key.addr.IsValid() {
		return ""
	}
	return w.source.key.addr.String()
}

// current returns w with the source that its address has now. A connection through a
// proxy may outlive its first source, which Sweep forgets while it counts nothing.
func (w Who) current() Who {
	if s := w.source; s != nil && s.forgotten.Load() {
		w.source = s.table.get(s.key, time.Now())
	}
	return w
}

// Admit spends n calls of w, all or none, from the rates of their kind, or returns a *Refusal. It
// does not wait. in has the scopes whose rates it spends; none: all. A caller that learns the
// principal late spends that of the Address first, and the others afterwards.
func (l *Limiter) Admit(kind Kind, n int, w Who, in ...Scope) error {
	r := l.inForce.Load().rates
	// Fast path: no rate of this kind is limited.
	if r.of[kind] == [scopes]Rate{} {
		return nil
	}
	now := time.Now()
	w = w.current()
	for scope := range scopes {
		if r.of[kind][scope].PerSecond == 0 || len(in) > 0 && !slices.Contains(in, scope) {
			continue
		}
		s := &l.all
		switch {
		case scope == Address:
			s = w.source
		case scope == Principal && w.Principal != "":
			s = l.principals.get(key{principal: w.Principal}, now)
		case scope == Principal:
			s = nil
		}
		if s == nil {
			continue
		}
		if b := s.bucket(r, kind, scope); !b.AllowN(now, n) {
			return l.tooOften(w, now, rateName(kind, scope), kind.String()+" "+scopeTexts[scope], b, n)
		}
	}
	return nil
}

// Limits reports whether a kind has a rate in any scope, so that Admit could refuse it.
func (l *Limiter) Limits(kind Kind) bool { return l.inForce.Load().rates.of[kind] != [scopes]Rate{} }

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
	return l.tooOften(w, now, rule.rateName(), "messages to the topics of "+rule.Pattern, rule.bucket, 1)
}

// A Call is a call in flight, until End. The zero Call has ended.
type Call struct {
	gate   *Gate // nil: it has no slot
	source *Source
}

// Begin begins a call of w. It takes a slot of those for calls that only read, or of the others.
// It waits for the slot as Gate.Enter does. The error is a *wire.Problem, a *Refusal or that of
// ctx. Without an error, call End.
func (l *Limiter) Begin(ctx context.Context, w Who, reads bool) (Call, error) {
	call, _, err := l.TryBegin(w, false)
	if err != nil {
		return Call{}, err
	}
	gate := l.calls
	if reads {
		gate = l.reads
	}
	if err := gate.Enter(ctx, w.Client()); err != nil {
		call.End()
		return Call{}, err
	}
	call.gate = gate
	return call, nil
}

// TryBegin is Begin for a call that does not wait. It needs a slot of those for publishes and
// changes, or none of its own: then it only counts among the calls of its address. It returns false
// with an error, or if the call would wait.
func (l *Limiter) TryBegin(w Who, slot bool) (call Call, ok bool, err error) {
	most := l.inForce.Load().AddressCalls
	w = w.current()
	if call.source = w.source; w.source != nil {
		if n := w.source.calls.Add(1); most > 0 && n > int64(most) {
			call.End()
			return Call{}, false, l.refuse(w, time.Now(), "address_calls", tooMany("address_calls", "calls in flight", most))
		}
	}
	if slot {
		if !l.calls.TryEnter() {
			call.End()
			return Call{}, false, nil
		}
		call.gate = l.calls
	}
	return call, true, nil
}

// End ends the call. It may be called again.
func (c *Call) End() {
	if c.gate != nil {
		c.gate.Leave()
	}
	if c.source != nil {
		c.source.calls.Add(-1)
	}
	*c = Call{}
}

// Sweep forgets addresses and principals that have nothing in use and full buckets.
func (l *Limiter) Sweep(now time.Time) {
	l.addresses.sweep(now)
	l.principals.sweep(now)
}

// Gauges adds the state of all limits to g.
func (l *Limiter) Gauges(g *metrics.Gauges) {
	f := l.inForce.Load()
	g.Limits = append(g.Limits, l.calls.Gauge(), l.reads.Gauge(), l.signatures.Gauge(), l.turns.Gauge(), l.sessions.Gauge(),
		metrics.Limit{Name: "connections", Most: f.Connections, InUse: int(l.connections.Load())},
		metrics.Limit{Name: "address_connections", Most: f.AddressConnections, OfOne: true},
		metrics.Limit{Name: "address_calls", Most: f.AddressCalls, OfOne: true},
		metrics.Limit{Name: "pending_sessions", Most: f.PendingSessions, InUse: l.sessions.Gauge().Waiting},
		metrics.Limit{Name: "waiting_calls", Most: f.WaitingCalls, InUse: l.calls.Gauge().Waiting},
		metrics.Limit{Name: "pending_messages_per_session", Most: f.PendingMessages, OfOne: true},
	)
	g.Addresses = l.addresses.len()
}
