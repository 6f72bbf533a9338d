package session

import (
	"hash/maphash"
	"sync"
)

// sessions is the map of all sessions by id, in parts, so that two cores seldom
// want the same lock.
type sessions struct {
	seed  maphash.Seed
	parts [64]struct {
		mu   sync.RWMutex
		byID map[string]*Session
	}
}

func newSessions() *sessions {
	m := &sessions{seed: maphash.MakeSeed()}
	for i := range m.parts {
		m.parts[i].byID = make(map[string]*Session)
	}
	return m
}

func (m *sessions) put(s *Session) {
	part := &m.parts[maphash.String(m.seed, s.id)%uint64(len(m.parts))]
	part.mu.Lock()
	defer part.mu.Unlock()
	part.byID[s.id] = s
}

func (m *sessions) remove(s *Session) {
	part := &m.parts[maphash.String(m.seed, s.id)%uint64(len(m.parts))]
	part.mu.Lock()
	defer part.mu.Unlock()
	delete(part.byID, s.id)
}

// get returns the session of that id, or nil. It allocates nothing.
func (m *sessions) get(id []byte) *Session {
	part := &m.parts[maphash.Bytes(m.seed, id)%uint64(len(m.parts))]
	part.mu.RLock()
	defer part.mu.RUnlock()
	return part.byID[string(id)]
}

// each calls f for every session that is wanted, without holding a lock over f.
func (m *sessions) each(wanted func(*Session) bool, f func(*Session)) {
	var some []*Session
	for i := range m.parts {
		part := &m.parts[i]
		some = some[:0]
		part.mu.RLock()
		for _, s := range part.byID {
			if wanted(s) {
				some = append(some, s)
			}
		}
		part.mu.RUnlock()
		for _, s := range some {
			f(s)
		}
		clear(some)
	}
}

func all(*Session) bool { return true }
