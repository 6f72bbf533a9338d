package limit

import (
	"hash/maphash"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/internal/memory"
)

// A Source counts the calls of one address or one principal. Its methods may be called
// concurrently.
type Source struct {
	table       *table[netip.Addr] // of addresses; nil: a principal, or shared
	addr        netip.Addr         // its key there
	forgotten   atomic.Bool        // Sweep removed it from the table
	connections atomic.Int64
	calls       atomic.Int64  // in flight or waiting
	client      memory.Client // bytes that it holds
	used        atomic.Int64  // when get last returned it, in Unix nanoseconds
	buckets     atomic.Pointer[buckets]
	prompt      atomic.Pointer[rate.Limiter] // limits refusals that are answered at once; nil: none yet
}

// bucket returns the bucket for calls of a kind.
func (s *Source) bucket(r *rates, kind Kind, scope Scope) *rate.Limiter {
	bs := s.buckets.Load()
	if bs == nil || bs.rates != r {
		fresh := &buckets{rates: r}
		if !s.buckets.CompareAndSwap(bs, fresh) {
			return s.bucket(r, kind, scope)
		}
		bs = fresh
	}
	if b := bs.of[kind].Load(); b != nil {
		return b
	}
	bs.of[kind].CompareAndSwap(nil, r.each[kind][scope].bucket())
	return bs.of[kind].Load()
}

// mayHearAtOnce reports whether a refusal can be answered without delay. A client that
// waits for retry_after_ms gets few refusals.
func (s *Source) mayHearAtOnce(now time.Time) bool {
	p := s.prompt.Load()
	if p == nil {
		s.prompt.CompareAndSwap(nil, rate.NewLimiter(promptPerSecond, promptBurst))
		p = s.prompt.Load()
	}
	return p.AllowN(now, 1)
}

// The rate of refusals that a source gets without delay. Many clients may share an
// address.
const (
	promptBurst     = 20
	promptPerSecond = 1
)

// idle reports whether a new source would be the same.
func (s *Source) idle(now time.Time) bool {
	if s.connections.Load() > 0 || s.calls.Load() > 0 || s.client.Holds() || now.UnixNano()-s.used.Load() < int64(linger) {
		return false
	}
	if p := s.prompt.Load(); p != nil && p.TokensAt(now) < promptBurst {
		return false
	}
	bs := s.buckets.Load()
	return bs == nil || bs.full(now)
}

// linger is how long a source stays in the table after get: longer than its caller
// takes to count something in it.
const linger = 10 * time.Second

// A table has the sources of all addresses, or of all principals. It is bounded: when it
// is full, new keys share a few sources. An attacker with many IPv6 networks could fill
// it; networks of one allocation share the same source, so that most other clients do not
// share with the attacker.
type table[K comparable] struct {
	mu     sync.RWMutex
	byKey  map[K]*Source
	others [sharedSources]Source
	seed   maphash.Seed
	swept  time.Time
}

const sharedSources = 1024

// maxSources bounds a table: about 60 MB, with every rate limited.
const maxSources = 100_000

func (t *table[K]) init() { t.byKey, t.seed = make(map[K]*Source), maphash.MakeSeed() }

// shared returns the source of a key in a full table. Providers of IPv6 get allocations
// of 32 bits.
func (t *table[K]) shared(key K) *Source {
	whose := any(key)
	if addr, ok := whose.(netip.Addr); ok && addr.Is6() {
		whose, _ = addr.Prefix(32)
	}
	return &t.others[maphash.Comparable(t.seed, whose)%sharedSources]
}

func (t *table[K]) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byKey)
}

// get returns the source of a key, and makes it if necessary.
func (t *table[K]) get(key K, now time.Time) *Source {
	t.mu.RLock()
	s := t.byKey[key]
	if s != nil {
		s.used.Store(now.UnixNano())
	}
	t.mu.RUnlock()
	if s != nil {
		return s
	}
	return t.make(key, now)
}

func (t *table[K]) make(key K, now time.Time) *Source {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byKey[key]
	if s == nil {
		if len(t.byKey) >= maxSources {
			return t.shared(key)
		}
		s = &Source{}
		s.addr, _ = any(key).(netip.Addr)
		s.table, _ = any(t).(*table[netip.Addr])
		if text, ok := any(key).(string); ok {
			key, _ = any(strings.Clone(text)).(K) // a substring would keep a whole request
		}
		t.byKey[key] = s
	}
	s.used.Store(now.UnixNano())
	return s
}

// sweep removes idle sources, at most once in linger.
func (t *table[K]) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.swept) < linger {
		return
	}
	t.swept = now
	for key, s := range t.byKey {
		if s.idle(now) {
			s.forgotten.Store(true)
			delete(t.byKey, key)
		}
	}
}
