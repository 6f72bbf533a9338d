package throttle

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
)

// Config is what a measurement is told. Begin with Default: zero is not a default
// but an error, unless a field says so.
type Config struct {
	// Target is a server that runs, such as http://127.0.0.1:8080, with one Setting in
	// force and its publish hook at Backend. Empty: ServerCommand is started for each.
	Target string
	// ServerPID is the Target's process on this machine. 0: its CPU is not measured.
	ServerPID int
	// ServerCommand starts a server; see package child for what it must understand,
	// beside the flags that set its limits and its hook. Ignored with a Target.
	ServerCommand []string

	// Backend is where the back end listens, as host:port. Default 127.0.0.1:0.
	Backend string
	// BackendWorkers is how many calls it serves at a time; others wait in it. Default
	// 0: as many as come.
	BackendWorkers int
	// Secret signs the hook's calls, as the server has it. Empty: one is made for a
	// server that is started. Never shown.
	Secret string

	// Settings are measured one after the other. Default: the article's.
	Settings []Setting
	// Users is how many there are. Default 100.
	Users int
	// Duration is how long users begin calls. Default 60 s.
	Duration time.Duration
	// CallTime is what a call takes in the back end. Default 5 s.
	CallTime time.Duration
	// Think is the mean pause of a user between two calls, which are exponentially
	// distributed: people come at random, and do not stay in step. Default 0: none.
	Think time.Duration
	// Step lets users begin little by little. Default: all at once.
	Step Step
	// CallsPerSession is after how many calls a user ends its session and opens
	// another. Default 0: it keeps the first.
	CallsPerSession int
	// Seed makes the pauses. Default 1.
	Seed uint64

	// Wait is how long the server may let a call or an opening wait before it tells so,
	// limits.wait. Default 2 s.
	Wait time.Duration
	// Tolerance is by how much it may be late. Default 250 ms.
	Tolerance time.Duration
	// PendingSessions and WaitingCalls bound who may wait: limits.pending_sessions and
	// limits.waiting_calls. Default 1000 each.
	PendingSessions, WaitingCalls int

	// MaxMean and MaxP95 are objectives for the time of calls, in a search for the time
	// in which they are served. Default 0: none.
	MaxMean, MaxP95 time.Duration

	spare time.Duration // what a call may take besides the back end's time
}

// spareTime is longer than a machine holds anyone up. Who is held up is late, and the
// figures say so; a call that is given up would have none.
const spareTime = 30 * time.Second

// Default returns the article's experiment, without a server.
func Default() Config {
	return Config{
		Backend:  "127.0.0.1:0",
		Settings: []Setting{{10, 16}, {100, 16}, {100, 100}},
		Users:    100, Duration: time.Minute, CallTime: 5 * time.Second, Seed: 1,
		Wait: 2 * time.Second, Tolerance: 250 * time.Millisecond, PendingSessions: 1000, WaitingCalls: 1000, spare: spareTime,
	}
}

// A ConfigError is a Config that cannot be measured: every fault, each named by its
// flag.
type ConfigError struct{ error }

// Unwrap returns the faults.
func (e ConfigError) Unwrap() error { return e.error }

// Bounds of what one machine is asked for.
const (
	mostUsers    = 10_000
	leastSecret  = 24
	mostDuration = 24 * time.Hour
)

func (c *Config) check() error {
	err := errors.Join(
		c.checkTarget(),
		c.checkSettings(),
		unless(c.Users > 0 && c.Users <= mostUsers, "--users: must be 1 to %d; got %d", mostUsers, c.Users),
		within("--duration", c.Duration), within("--call-time", c.CallTime), within("--wait", c.Wait), within("--tolerance", c.Tolerance),
		unless(c.Think >= 0, "--think: must not be negative; got %v", c.Think),
		unless(c.Step.Every <= mostDuration && c.Step.begin(c.Users-1) < c.Duration, "--step: the last of %d users would begin after --duration", c.Users),
		unless(c.CallsPerSession >= 0, "--calls-per-session: must not be negative; got %d", c.CallsPerSession),
		unless(c.BackendWorkers >= 0, "--backend-workers: must not be negative; got %d", c.BackendWorkers),
		unless(c.PendingSessions > 0, "--pending-sessions: must be at least 1; got %d", c.PendingSessions),
		unless(c.WaitingCalls > 0, "--waiting-calls: must be at least 1; got %d", c.WaitingCalls),
		unless(c.MaxMean >= 0, "--max-mean: must not be negative; got %v", c.MaxMean),
		unless(c.MaxP95 >= 0, "--max-p95: must not be negative; got %v", c.MaxP95),
	)
	if err != nil {
		return ConfigError{err}
	}
	return nil
}

func (c *Config) checkTarget() error {
	if c.Target == "" {
		return errors.Join(
			unless(len(c.ServerCommand) > 0, "--target: name a server, or give a command that starts one"),
			unless(c.ServerPID == 0, "--server-pid: needs --target; the test knows the process of a server that it starts"),
		)
	}
	return errors.Join(loadtest.CheckTarget(c.Target),
		unless(c.ServerPID >= 0, "--server-pid: must not be negative; got %d", c.ServerPID),
		unless(len(c.Settings) <= 1, "--settings: with --target, name only the setting that is in force there"),
		unless(len(c.Secret) >= leastSecret, "--target: set %s in the environment to the secret of the target's hook, of at least %d bytes", webhook.SecretVariable, leastSecret),
	)
}

func (c *Config) checkSettings() error {
	err := unless(len(c.Settings) > 0, "--settings: name at least one setting")
	for i, s := range c.Settings {
		err = errors.Join(err, unless(!slices.Contains(c.Settings[:i], s), "--settings: %v is listed twice", s))
	}
	return err
}

func within(flag string, d time.Duration) error {
	return unless(d > 0 && d <= mostDuration, "%s: must be positive and at most %v; got %v", flag, mostDuration, d)
}

func unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}
