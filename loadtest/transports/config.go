package transports

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pubsubd/pubsubd/loadtest"
)

// Config is what a measurement is told. Begin with Default: zero is not a default
// but an error, unless a field says so.
type Config struct {
	// Target is a server that runs, such as http://127.0.0.1:8080, whose histories must
	// hold all Messages. Empty: ServerCommand is started.
	Target string
	// TargetTCP is the Target's TCP port, as host:port. Empty: there is none.
	TargetTCP string
	// ServerPID is the Target's process on this machine. 0: its CPU is not measured.
	ServerPID int
	// ServerCommand starts a server; see package child for what it must understand. It
	// is given flags that raise its limits. Ignored with a Target.
	ServerCommand []string
	// BareCommand starts the floor, package bare. Empty: there is none.
	BareCommand []string

	// Clients is how many there are at once. Default 1.
	Clients int
	// Messages is how many each client is sent. Default 200,000.
	Messages int
	// SingleMessages is the same where each takes a request. Default 0: a tenth.
	SingleMessages int
	// Repeats is how often each subject is measured, after one time that does not
	// count. Default 10.
	Repeats int

	// Transports, Formats and Ways say what is measured. Default: all.
	Transports, Formats, Ways []string
}

// Default returns the defaults, without commands.
func Default() Config {
	return Config{
		Clients: 1, Messages: 200_000, Repeats: 10,
		Transports: Transports(), Formats: Formats(), Ways: Ways(),
	}
}

// A ConfigError is a Config that cannot be measured: every fault, each named by its
// flag.
type ConfigError struct{ error }

// Unwrap returns the faults.
func (e ConfigError) Unwrap() error { return e.error }

// Bounds of what one machine is asked for.
const (
	mostMessages = 1_000_000 // what loadtest.SequenceDigits tell apart
	mostClients  = 10_000
	mostRepeats  = 1000
)

func (c *Config) check() error {
	err := errors.Join(
		unless(c.Target != "" || len(c.ServerCommand) > 0, "--target: name a server, or give a command that starts one"),
		c.checkTarget(),
		unless(c.Clients > 0 && c.Clients <= mostClients, "--clients: must be 1 to %d; got %d", mostClients, c.Clients),
		unless(c.Messages > 0 && c.Messages <= mostMessages, "--messages: must be 1 to %d; got %d", mostMessages, c.Messages),
		unless(c.SingleMessages >= 0 && c.SingleMessages <= c.Messages, "--single-messages: must be 0 to --messages, %d; got %d", c.Messages, c.SingleMessages),
		unless(c.Repeats > 0 && c.Repeats <= mostRepeats, "--repeats: must be 1 to %d; got %d", mostRepeats, c.Repeats),
		among("--transports", c.Transports, Transports()),
		among("--formats", c.Formats, Formats()),
		among("--ways", c.Ways, Ways()),
	)
	if err == nil && len(c.subjects()) == 0 {
		err = errors.New("--formats: none of --transports supports them")
	}
	if err != nil {
		return ConfigError{err}
	}
	return nil
}

func (c *Config) checkTarget() error {
	if c.Target == "" {
		return errors.Join(
			unless(c.TargetTCP == "", "--target-tcp: needs --target; the test knows the TCP port of a server that it starts"),
			unless(c.ServerPID == 0, "--server-pid: needs --target; the test knows the process of a server that it starts"),
		)
	}
	return errors.Join(loadtest.CheckTarget(c.Target),
		unless(c.TargetTCP != "" || !slices.Contains(c.Transports, TCP), "--target-tcp: name the target's TCP port, or leave tcp out of --transports"),
		unless(c.ServerPID >= 0, "--server-pid: must not be negative; got %d", c.ServerPID),
	)
}

// among refuses what is not known, and what is said twice.
func among(flag string, named, known []string) error {
	if len(named) == 0 {
		return fmt.Errorf("%s: name some of %s", flag, strings.Join(known, ", "))
	}
	for i, n := range named {
		if !slices.Contains(known, n) || slices.Contains(named[:i], n) {
			return fmt.Errorf("%s: %q: name some of %s, each once", flag, n, strings.Join(known, ", "))
		}
	}
	return nil
}

func unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// messages is how many each client of the subject is sent.
func (c *Config) messages(s subject) int {
	switch {
	case !s.onePerAnswer():
		return c.Messages
	case c.SingleMessages > 0:
		return c.SingleMessages
	}
	return max(c.Messages/10, 1)
}
