package httpapi

import "sync"

// serving counts the requests under way, so that the daemon can wait for the last.
// http.Server.Close closes connections, but does not wait for their handlers.
type serving struct {
	mu   sync.Mutex
	n    int
	over chan struct{} // made by wait; closed when the last request ends
}

// begin reports whether a request may begin. If it may, call end afterwards.
func (s *serving) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return false
	}
	s.n++
	return true
}

func (s *serving) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
	if s.n == 0 && s.over != nil {
		close(s.over)
	}
}

// wait prevents further requests, and returns when the last has ended. Call it once.
func (s *serving) wait() {
	s.mu.Lock()
	s.over = make(chan struct{})
	if s.n == 0 {
		close(s.over)
	}
	s.mu.Unlock()
	<-s.over
}
