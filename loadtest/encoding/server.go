package encoding

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/child"
)

// A server is what is measured.
type server struct {
	target    string
	address   string
	authority string // what it is called in requests
	topics    string // what the test's topics begin with
	pid       int    // 0: not known
	began     time.Time
	child     *child.Child // nil: it was there
}

func newServer(ctx context.Context, cfg *Config) (*server, error) {
	s := &server{target: cfg.Target, pid: cfg.ServerPID, topics: "encoding." + rand.Text()[:8], began: time.Now()}
	if _, known := loadtest.ProcessCPU(s.pid); s.pid > 0 && !known {
		return nil, fmt.Errorf("--server-pid: the CPU time of a process %d cannot be read", s.pid)
	}
	if s.target == "" {
		var err error
		if s.child, err = child.Server(ctx, cfg.ServerCommand); err != nil {
			return nil, err
		}
		s.target, s.pid = "http://"+s.child.Addresses().Public, s.child.PID()
	}
	address, authority, err := loadtest.Resolve(ctx, s.target)
	if err != nil {
		s.end()
		return nil, err
	}
	s.address, s.authority = address.String(), authority
	return s, nil
}

// cpu is what it used so far, in seconds; 0 if that is not known.
func (s *server) cpu() float64 {
	cpu, _ := loadtest.ProcessCPU(s.pid)
	return cpu.Seconds()
}

// ending is why a test ended that came to err: what is behind it, if it was not the
// test's own doing.
func (s *server) ending(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: %w", ctx.Err())
	case err != nil && s.child != nil:
		return errors.Join(err, s.child.Ended())
	}
	return err
}

func (s *server) end() {
	if s.child != nil {
		_ = s.child.Stop()
	}
}
