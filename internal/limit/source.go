package limit

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
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
	table       *table      // immutable, like key; nil: it is shared
	key         key         // in the table
	forgotten   atomic.Bool // Sweep removed it from the table
	connections atomic.Int64
	calls       atomic.Int64  // in flight or waiting
	client      memory.Client // bytes that it holds
	used        atomic.Int64  // when get last returned it; see table.at
	buckets     atomic.Pointer[buckets]
	prompt      atomic.Pointer[rate.Limiter] // limits refusals without delay; nil: none yet
}

// buckets are those of one source for one version of the rates.
type buckets struct {
	rates *rates
	of    [kinds]atomic.Pointer[rate.Limiter]
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
	return bucketIn(&bs.of[kind], r.of[kind][scope])
}

// bucketIn returns the bucket in p, which it creates if necessary.
func bucketIn(p *atomic.Pointer[rate.Limiter], r Rate) *rate.Limiter {
	if p.Load() == nil {
		p.CompareAndSwap(nil, r.bucket())
	}
	return p.Load()
}

// isIdle reports whether a new source would be the same.
func (s *Source) isIdle(now time.Time) bool {
	if s.connections.Load() > 0 || s.calls.Load() > 0 || s.client.Holds() || s.table.at(now)-s.used.Load() < int64(linger) {
		return false
	}
	if !isFull(s.prompt.Load(), now) {
		return false
	}
	if bs := s.buckets.Load(); bs != nil {
		for kind := range bs.of {
			if !isFull(bs.of[kind].Load(), now) {
				return false
			}
		}
	}
	return true
}

// isFull reports whether a bucket is full. A bucket that was not made yet is.
func isFull(b *rate.Limiter, now time.Time) bool {
	return b == nil || b.TokensAt(now) >= float64(b.Burst())
}

// linger is how long a source stays in the table after get, so that the caller can count
// something in it.
const linger = 10 * time.Second

// A key is what a source counts for: an address or the name of a principal.
type key struct {
	addr      netip.Addr
	principal string
}

// A table has the sources of all addresses, or of all principals. It is bounded: when it
// is full, new keys share a few sources. An attacker with many IPv6 networks could fill
// it. Networks of one allocation then share one source, which most other clients do not
// share.
type table struct {
	mu     sync.RWMutex
	byKey  map[key]*Source
	others [sharedSources]Source
	seed   maphash.Seed
	begun  time.Time    // immutable
	swept  atomic.Int64 // when sweep last ran; see at
}

const sharedSources = 1024

// maxSources bounds a table: about 60 MB, with every rate limited.
const maxSources = 100_000

func (t *table) init() {
	t.byKey, t.seed = make(map[key]*Source), maphash.MakeSeed()
	t.begun = time.Now().Add(-linger) // the first sweep is due
}

// at returns when now is, in nanoseconds after begun. It does not depend on the wall clock: after that
// was set back, no source would be idle for as long.
func (t *table) at(now time.Time) int64 { return int64(now.Sub(t.begun)) }

// shared returns the source of a key in a full table. Providers of IPv6 get allocations
// of 32 bits.
func (t *table) shared(k key) *Source {
	if allocation, err := k.addr.Prefix(32); err == nil && k.addr.Is6() {
		k.addr = allocation.Addr()
	}
	return &t.others[maphash.Comparable(t.seed, k)%sharedSources]
}

func (t *table) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byKey)
}

// get returns the source of a key, and creates it if necessary.
func (t *table) get(k key, now time.Time) *Source {
	t.mu.RLock()
	s := t.byKey[k]
	if s != nil {
		s.used.Store(t.at(now))
	}
	t.mu.RUnlock()
	if s != nil {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s = t.byKey[k]; s == nil {
		if len(t.byKey) >= maxSources {
			return t.shared(k)
		}
		k.principal = strings.Clone(k.principal) // a substring would keep a whole request
		s = &Source{table: t, key: k}
		t.byKey[k] = s
	}
	s.used.Store(t.at(now))
	return s
}

// removedAtOnce is how many sources sweep removes before it lets callers of get go first.
const removedAtOnce = 256

// sweep removes idle sources, at most once in linger. A full table takes 40 ms to look at. So sweep
// does that without the lock, for which connections and calls wait.
func (t *table) sweep(now time.Time) {
	last, at := t.swept.Load(), t.at(now)
	if at-last < int64(linger) || !t.swept.CompareAndSwap(last, at) {
		return
	}
	for idle := range slices.Chunk(t.idle(now), removedAtOnce) {
		t.remove(idle, now)
	}
}

// idle returns the sources that are idle. Any of them may be in use again when it returns.
func (t *table) idle(now time.Time) []*Source {
	t.mu.RLock()
	all := slices.AppendSeq(make([]*Source, 0, len(t.byKey)), maps.Values(t.byKey))
	t.mu.RUnlock()
	return slices.DeleteFunc(all, func(s *Source) bool { return !s.isIdle(now) })
}

// remove removes sources that are still idle.
func (t *table) remove(sources []*Source, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range sources {
		if t.byKey[s.key] == s && s.isIdle(now) {
			s.forgotten.Store(true)
			delete(t.byKey, s.key)
		}
	}
}
