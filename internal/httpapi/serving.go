package httpapi

import "sync"

// serving counts the requests that are being served, so that the daemon can wait
// for the last: http.Server.Close cuts connections off, but does not wait for
// those who served them.
type serving struct {
	mu   sync.Mutex
	n    int
	over chan struct{} // made when no request may begin any more; closed at the last one's end
}

// begin reports whether a request may be served; then end must follow.
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

// wait lets no request begin any more and returns when the last has ended. It is
// called once.
func (s *serving) wait() {
	s.mu.Lock()
	s.over = make(chan struct{})
	if s.n == 0 {
		close(s.over)
	}
	s.mu.Unlock()
	<-s.over
}
