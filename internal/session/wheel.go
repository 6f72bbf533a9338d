package session

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// sessions is all sessions by id, in parts, so that two cores seldom want the same
// lock. Each part is also a wheel: a session stands in the slot of the time at
// which it is to be looked at next, and a turn looks at those whose time has come.
// A timer for each would be woken up for each; to look at all of them each second
// was a quarter of what fifteen thousand idle ones cost. All methods may be
// called concurrently.
type sessions struct {
	seed  maphash.Seed
	begun time.Time     // from when slots are counted, by a clock that nobody sets
	grain time.Duration // that a slot stands for
	at    atomic.Int64  // slot up to which, and with which, the last turn came
	turns sync.Mutex    // held by turn
	parts [64]part
}

type part struct {
	mu    sync.RWMutex // guards the fields below, and place of the sessions; after a session's
	byID  map[string]*Session
	slots [slots]place // anchors of lists
}

// slots is how many a wheel has: those of the longest time between two looks, the
// one that the last turn came to, and one for what is left of it.
const slots = perLook + 2

// perLook is how many slots the longest time between two looks takes.
const perLook = 64

// A place is a session's in its slot: a link of the list.
type place struct {
	prev, next *place
	session    *Session
}

// newSessions returns an empty map that has each session looked at within every.
func newSessions(every time.Duration, now time.Time) *sessions {
	m := &sessions{seed: maphash.MakeSeed(), begun: now, grain: max(1, every/perLook)}
	for i := range m.parts {
		p := &m.parts[i]
		p.byID = make(map[string]*Session)
		for j := range p.slots {
			p.slots[j].prev, p.slots[j].next = &p.slots[j], &p.slots[j]
		}
	}
	return m
}

func (m *sessions) part(id string) *part {
	return &m.parts[maphash.String(m.seed, id)%uint64(len(m.parts))]
}

// put lists s, to be looked at as soon as can be.
func (m *sessions) put(s *Session) {
	p := m.part(s.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byID[s.id] = s
	s.place.session = s
	m.placeLocked(p, s, m.begun)
}

func (m *sessions) remove(s *Session) {
	p := m.part(s.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byID, s.id)
	s.place.unlink()
}

func (m *sessions) slot(t time.Time) int64 { return int64(t.Sub(m.begun) / m.grain) }

// placeLocked has s looked at when the time comes, or before.
func (m *sessions) placeLocked(p *part, s *Session, when time.Time) {
	at := m.at.Load()
	slot := min(max(m.slot(when), at), at+perLook)
	s.slot.Store(slot)
	anchor := &p.slots[slot%slots]
	s.place.unlink()
	s.place.prev, s.place.next = anchor.prev, anchor
	anchor.prev.next, anchor.prev = &s.place, &s.place
}

func (l *place) unlink() {
	if l.prev != nil {
		l.prev.next, l.next.prev = l.next, l.prev
		l.prev, l.next = nil, nil
	}
}

// hurry has s looked at by the given time, if it is listed.
func (m *sessions) hurry(s *Session, when time.Time) {
	if m.slot(when) >= s.slot.Load() {
		return
	}
	p := m.part(s.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID[s.id] == s {
		m.placeLocked(p, s, when)
	}
}

// turn calls look for every session whose time has come, without holding a lock
// over it; look says when the next time is.
func (m *sessions) turn(now time.Time, look func(*Session) (next time.Time)) {
	m.turns.Lock()
	defer m.turns.Unlock()
	from := m.at.Load()
	to := max(from, m.slot(now))
	m.at.Store(to) // before looking: what is placed from now on comes with the next turn
	from = max(from, to-slots+1)
	var some []*Session
	for i := range m.parts {
		p := &m.parts[i]
		some = p.take(some[:0], from, to)
		for _, s := range some {
			next := look(s)
			p.mu.Lock()
			if p.byID[s.id] == s && s.place.prev == nil {
				m.placeLocked(p, s, next)
			}
			p.mu.Unlock()
		}
	}
}

// take takes the sessions out of slots from to to.
func (p *part) take(some []*Session, from, to int64) []*Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	for slot := from; slot <= to; slot++ {
		anchor := &p.slots[slot%slots]
		for anchor.next != anchor {
			s := anchor.next.session
			s.place.unlink()
			s.slot.Store(math.MaxInt64) // who hurries meanwhile finds it a place
			some = append(some, s)
		}
	}
	return some
}

// get returns the session of that id, or nil. It allocates nothing.
func (m *sessions) get(id []byte) *Session {
	p := &m.parts[maphash.Bytes(m.seed, id)%uint64(len(m.parts))]
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byID[string(id)]
}

// each calls f for every session, without holding a lock over f.
func (m *sessions) each(f func(*Session)) {
	var some []*Session
	for i := range m.parts {
		p := &m.parts[i]
		some = some[:0]
		p.mu.RLock()
		for _, s := range p.byID {
			some = append(some, s)
		}
		p.mu.RUnlock()
		for _, s := range some {
			f(s)
		}
		clear(some)
	}
}
