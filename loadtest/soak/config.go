package soak

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config is what a soak is told. Begin with Default: zero is not a default but an
// error.
type Config struct {
	// ServerCommand starts the daemon; see server.go for what it must understand.
	ServerCommand []string
	// Duration is how long everything goes wrong. Default 10 min. What follows, until
	// every subscriber has everything, is bounded by Settle.
	Duration time.Duration
	// Settle is how long subscribers may take at the end, when nothing goes wrong any
	// more. Default 20 s: below the time for which a poll is held, so that one that
	// was forgotten does not recover by its end.
	Settle time.Duration
	// Seed makes a run's random choices; the same seed makes the same ones, as far as
	// the order of events is the same. Default 1.
	Seed uint64
	// Topics is how many there are, besides those of eager publishers. Default 50.
	Topics int
	// Subscribers is how many there are at a time. Default 200.
	Subscribers int
	// Publishers is how many there are. Default 10.
	Publishers int
	// Rate is how many messages they publish in a second, bursts left out. Default 300.
	Rate float64
	// Restart is how long a daemon lives on average. Default 20 s; it is less in a run
	// that is too short for three.
	Restart time.Duration
	// Store is the sync mode of the daemon's log on disk. Default "": the daemon has no
	// log, and a kill loses its histories. With a log, a kill must lose nothing.
	Store string
}

// Default returns the defaults, without a ServerCommand.
func Default() Config {
	return Config{
		Duration: 10 * time.Minute, Settle: 20 * time.Second, Seed: 1,
		Topics: 50, Subscribers: 200, Publishers: 10, Rate: 300, Restart: 20 * time.Second,
	}
}

// A ConfigError is a Config that no soak can be made of: every fault, each named
// by its flag.
type ConfigError struct{ error }

// Unwrap returns the faults.
func (e ConfigError) Unwrap() error { return e.error }

// Bounds of what one machine is asked for. A subscriber has up to three
// connections, of which this process has both ends and the proxy's.
const (
	mostSubscribers = 2000 // at nine files each, within the 20,000 that many machines allow
	mostRate        = 20_000
)

// storeModes are the sync modes of a daemon's log.
var storeModes = []string{"always", "1s", "never"}

func (c *Config) check() error {
	err := errors.Join(
		unless(len(c.ServerCommand) > 0, "no command that starts a server"),
		unless(c.Duration > 0 && c.Duration <= 24*time.Hour, "--duration: must be positive and at most 24h; got %v", c.Duration),
		unless(c.Settle > 0, "--settle: must be positive; got %v", c.Settle),
		unless(c.Topics > 0 && c.Topics <= mostTopics-eagerTopics, "--topics: must be 1 to %d; got %d", mostTopics-eagerTopics, c.Topics),
		unless(c.Subscribers > 0 && c.Subscribers <= mostSubscribers, "--subscribers: must be 1 to %d; got %d", mostSubscribers, c.Subscribers),
		unless(c.Publishers > 0 && c.Publishers < firstEager, "--publishers: must be 1 to %d; got %d", firstEager-1, c.Publishers),
		unless(c.Rate > 0 && c.Rate <= mostRate, "--rate: must be positive and at most %d messages a second; got %v", mostRate, c.Rate),
		unless(c.Restart > 0, "--restart: must be positive; got %v", c.Restart),
		unless(c.Store == "" || slices.Contains(storeModes, c.Store), "--store: %q: use %s", c.Store, strings.Join(storeModes, ", ")),
	)
	if err != nil {
		return ConfigError{err}
	}
	return nil
}

func unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}
