package transport

import (
	"net"
	"sync"
)

// connections are open connections that no http.Server and no lane closes.
type connections struct {
	mu      sync.Mutex // guards the fields below
	open    map[net.Conn]bool
	closed  bool
	drained chan struct{} // closed when no connection is open; nil: drain was not called
}

// add adds a connection, or closes it and returns false after close. remove must follow.
func (s *connections) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	s.open[c] = true
	return true
}

func (s *connections) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	s.maybeDrainedLocked()
}

func (s *connections) maybeDrainedLocked() {
	if s.drained != nil && len(s.open) == 0 {
		close(s.drained)
		s.drained = nil
	}
}

// drain returns a channel that is closed once no connection is open. It is called once.
func (s *connections) drain() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	drained := make(chan struct{})
	s.drained = drained
	s.maybeDrainedLocked()
	return drained
}

// close closes the open connections, and those that are added later.
func (s *connections) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.open {
		_ = c.Close()
	}
}
