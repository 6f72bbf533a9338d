package session

import (
	"sync"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

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
