package daemon

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A steady listener goes on when the system is short of something, and never spins
// then. While there is no descriptor for a connection it turns the connection away,
// with the help of a spare one: to leave it waiting would wake the listener for ever,
// and leave its client without a word.
type steady struct {
	*net.TCPListener
	name  string
	spare *spare
	tell  telling
	ended prometheus.Counter
	short prometheus.Counter // what was refused for want of a descriptor
	log   *zap.Logger

	once   sync.Once
	closed chan struct{}
	warned seldom // that there is none; owned by Accept
}

func (d *Daemon) steady(l *net.TCPListener, name string, tell telling) *steady {
	return &steady{
		TCPListener: l, name: name, spare: &d.spare, tell: tell,
		ended: d.metrics.ConnectionsEnded.WithLabelValues(string(metrics.Refused)),
		short: d.metrics.Limited.WithLabelValues("open_files"),
		log:   d.log, closed: make(chan struct{}),
	}
}

// Accept is net.Listener's, for one goroutine. It fails when the listener is closed, or
// cannot be listened on any more.
func (l *steady) Accept() (*net.TCPConn, error) {
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		c, err := l.AcceptTCP()
		for err != nil && lacksFile(err) && l.turnAway() {
			c, err = l.AcceptTCP()
		}
		switch {
		case err == nil:
			return c, nil
		case !passes(err):
			return nil, err
		}
		l.warn(err)
		select {
		case <-time.After(pause):
		case <-l.closed:
		}
	}
}

// Between two tries to accept, as net/http has them.
const (
	leastPause = 5 * time.Millisecond
	mostPause  = time.Second
)

// Close implements net.Listener.
func (l *steady) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.TCPListener.Close()
}

// warn says, now and then, that connections cannot be accepted.
func (l *steady) warn(err error) {
	if l.warned.due(time.Now()) {
		l.log.Warn("connections cannot be accepted", zap.String("listener", l.name), zap.Error(err))
	}
}

// lacksFile reports whether there was no descriptor for a connection.
func lacksFile(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// passes reports whether an error of accept is of one connection, or of something that
// the system lacks for now. The first are those that accept(2) says to take so.
func passes(err error) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return false
	}
	switch errno {
	case syscall.ECONNABORTED, syscall.EPROTO, syscall.ENOPROTOOPT, syscall.EPERM, syscall.EOPNOTSUPP,
		syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EINTR:
		return true
	}
	return false
}

// turnAway refuses the connection that waits longest, and reports whether it could.
func (l *steady) turnAway() bool {
	away := l.spare.lend(func() bool {
		_ = l.SetDeadline(time.Now().Add(refusalPatience)) // it may have gone meanwhile
		defer func() { _ = l.SetDeadline(time.Time{}) }()
		c, err := l.AcceptTCP()
		if err != nil {
			return false
		}
		l.refuse(c, &limit.Refusal{Problem: noFile()})
		return true
	})
	if away {
		l.short.Inc()
		l.warn(syscall.EMFILE)
	}
	return away
}

func noFile() *wire.Problem {
	return wire.NewProblem(wire.CodeOverloaded, "retry later", "the daemon has no more open files").Retry(time.Second)
}

// A spare is a descriptor that is kept for when there is no other. It may be used
// concurrently.
type spare struct {
	mu   sync.Mutex // guards file; held while it is lent
	file *os.File
}

// open opens it, unless it is.
func (s *spare) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openLocked()
}

func (s *spare) openLocked() {
	if s.file == nil {
		s.file, _ = os.Open(os.DevNull) // without one, accept waits for another to be free
	}
}

// lend runs f while there is one descriptor more. It reports false if there is none to
// lend, or f does.
func (s *spare) lend(f func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.openLocked()
	if s.file == nil {
		return false
	}
	_ = s.file.Close()
	s.file = nil
	return f()
}

func (s *spare) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}
