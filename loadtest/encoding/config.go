package encoding

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// Config is what the test is told. Begin with Default: zero is not a default but an
// error.
type Config struct {
	// Target is the server's base URL, such as http://127.0.0.1:8080. Empty:
	// ServerCommand is started.
	Target string
	// ServerPID is the Target's process on this machine, for its CPU. 0: not known.
	ServerPID int
	// ServerCommand starts a server; see package child. Ignored with a Target.
	ServerCommand []string
	// Build is what the started server's build is called. It is only reported.
	Build string

	// Clients is how many there are, each in a closed loop. Default 16, which keeps two
	// to eight cores busy.
	Clients int
	// Duration is how long each encoding and size is recorded in each round. Default 2 s.
	Duration time.Duration
	// Rounds is how often everything is measured, in turns. Default 5.
	Rounds int
	// Objects are the sizes of the arrays. Default 20 and 100.
	Objects []int
	// Seed makes the objects' contents. Default 1.
	Seed uint64
}

// Default returns the defaults, without a server.
func Default() Config {
	return Config{Clients: 16, Duration: 2 * time.Second, Rounds: 5, Objects: []int{20, 100}, Seed: 1}
}

// A ConfigError is a Config that nothing can be measured with: every fault, each
// named by its flag.
type ConfigError struct{ error }

// Unwrap returns the faults.
func (e ConfigError) Unwrap() error { return e.error }

// Bounds of what one machine and a daemon's default limits are asked for.
const (
	mostClients = 1000
	mostObjects = 300 // in 64 KiB, the longest message
	mostRounds  = 1000
)

func (c *Config) check() error {
	err := errors.Join(
		unless(c.Target != "" || len(c.ServerCommand) > 0, "--target: name a server, or give a command that starts one"),
		c.checkTarget(),
		unless(c.Target != "" || c.ServerPID == 0, "--server-pid: needs --target; the test knows the process of a server that it starts"),
		unless(c.ServerPID >= 0, "--server-pid: must not be negative; got %d", c.ServerPID),
		unless(c.Clients > 0 && c.Clients <= mostClients, "--clients: must be 1 to %d; got %d", mostClients, c.Clients),
		unless(c.Duration > 0 && c.Duration <= time.Hour, "--duration: must be positive and at most 1h; got %v", c.Duration),
		unless(c.Rounds > 0 && c.Rounds <= mostRounds, "--rounds: must be 1 to %d; got %d", mostRounds, c.Rounds),
		c.checkObjects(),
	)
	if err != nil {
		return ConfigError{err}
	}
	return nil
}

func (c *Config) checkTarget() error {
	if c.Target == "" {
		return nil
	}
	return loadtest.CheckTarget(c.Target)
}

func (c *Config) checkObjects() error {
	err := unless(len(c.Objects) > 0, "--objects: name at least one size")
	for i, n := range c.Objects {
		err = errors.Join(err,
			unless(n > 0 && n <= mostObjects, "--objects: must be 1 to %d; got %d", mostObjects, n),
			unless(!slices.Contains(c.Objects[:i], n), "--objects: %d is listed twice", n))
	}
	return err
}

func unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}
