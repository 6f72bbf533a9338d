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

// A Source is where calls come from: an address, or a principal. Its methods may be
// called concurrently.
type Source struct {
	addr        netip.Addr  // that stands for it in its table; zero: it is none of an address
	forgotten   atomic.Bool // another may be in its place
	connections atomic.Int64
	calls       atomic.Int64  // in flight, or waiting to be
	client      memory.Client // bytes that wait
	asked       atomic.Int64  // when it was asked for last, in Unix nanoseconds
	buckets     atomic.Pointer[buckets]
	heed        atomic.Pointer[rate.Limiter] // how many refusals are told at once; nil: none was yet
}

// endCall is told that a call is over. It may be called on nil.
func (s *Source) endCall() {
	if s != nil {
		s.calls.Add(-1)
	}
}

// bucket returns what calls of a kind are taken from.
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

// heeds reports whether a refusal can be told at once: the source was not refused
// much oftener than it would be if it waited as it was told.
func (s *Source) heeds(now time.Time) bool {
	h := s.heed.Load()
	if h == nil {
		s.heed.CompareAndSwap(nil, rate.NewLimiter(toldASecond, toldAtOnce))
		h = s.heed.Load()
	}
	return h.AllowN(now, 1)
}

// A source is told so many refusals without delay, and some more each second: clients
// that wait as they are told have one now and then, and many may share an address.
const (
	toldAtOnce  = 20
	toldASecond = 1
)

// idle reports whether the source, made anew, would be as it is.
func (s *Source) idle(now time.Time) bool {
	if s.connections.Load() > 0 || s.calls.Load() > 0 || s.client.Holds() || now.UnixNano()-s.asked.Load() < int64(linger) {
		return false
	}
	h := s.heed.Load()
	if h != nil && h.TokensAt(now) < toldAtOnce {
		return false
	}
	bs := s.buckets.Load()
	return bs == nil || bs.full(now)
}

// linger is how long a source stays that was asked for: longer than it takes to count
// something in it.
const linger = 10 * time.Second

// A table is the sources of one kind. It is bounded: once it is full, those that have
// no place share few. An owner of many IPv6 networks, who can fill it, has those of one
// allocation in the same one, and so does not share with everybody.
type table[K comparable] struct {
	mu     sync.RWMutex
	byKey  map[K]*Source
	others [sharedSources]Source
	seed   maphash.Seed
	swept  time.Time
}

const sharedSources = 1024

// maxSources bounds a table: some 60 MB, with every rate limited.
const maxSources = 100_000

func (t *table[K]) init() { t.byKey, t.seed = make(map[K]*Source), maphash.MakeSeed() }

// shared returns the source of a key that has no place. Of IPv6, providers are allocated
// 32 bits, and their clients more of them.
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

// get returns the source of that key.
func (t *table[K]) get(key K, now time.Time) *Source {
	t.mu.RLock()
	s := t.byKey[key]
	if s != nil {
		s.asked.Store(now.UnixNano())
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
		if text, ok := any(key).(string); ok {
			key, _ = any(strings.Clone(text)).(K) // a substring would keep a whole request
		}
		t.byKey[key] = s
	}
	s.asked.Store(now.UnixNano())
	return s
}

// sweep forgets those that are idle, each few seconds.
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
