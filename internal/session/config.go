package session

import (
	"cmp"
	"context"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// Config bounds sessions. A zero field takes its default.
type Config struct {
	// Queue is how many frames a session buffers before a topic falls behind and its
	// messages wait in the history. Default 32: every idle session pays for all of them.
	Queue int

	// Unacked is how many frames a session keeps that were sent but not acked; an answer
	// ends when it is reached. Default 1024.
	Unacked int

	// Subscriptions bounds the topics and patterns that the client of one session names. Default 1000.
	Subscriptions int

	// PatternBytes bounds the topics of one session that only its patterns match. Each counts as
	// much memory as broker.BytesOf says. Default 1 MiB: about 3,300 topics with names of 30 bytes.
	PatternBytes int

	// InactivityTimeout ends a session that had no poll for so long. Default 60 s.
	InactivityTimeout time.Duration

	// EndedRemembered is how many ended sessions get 410 with the reason instead of 404.
	// Default 10,000.
	EndedRemembered int

	// MaxSessions bounds the sessions without an id: stateless polls and two-way
	// connections. Beyond it they get the problem overloaded. Default 1,000,000.
	MaxSessions int

	// Slots bound all other sessions. Default: no bound.
	Slots Slots

	// Revoked reports whether a grant is revoked. It may be called concurrently, and under
	// locks, so it must not wait. Default nil: none ever is.
	Revoked func(*auth.Grant) bool

	// Forbidden returns what is forbidden to a subject. It may be called concurrently, and under
	// locks, so it must not wait. Default nil: nothing ever is.
	Forbidden func(subject string) auth.Prohibitions

	// Events receives the openings and ends of sessions. Default none.
	Events Events

	// Presence learns who is on the topics that have presence. Default none.
	Presence Presence
}

// MostNamed returns how many topics and patterns one request may name in all its lists.
func (c Config) MostNamed() int { return 2 * c.mostNamed() }

// mostNamed returns how many topics and patterns a client may name in one list.
func (c *Config) mostNamed() int { return c.Subscriptions + namedForPatterns*c.mostMatched() }

// CheckNumber refuses a list of more names than a client may send: a list with patterns may have
// those of the topics that they matched. The error is a *wire.Problem, too_many_subscriptions.
func (c *Config) CheckNumber(names int, patterns bool) error {
	most := c.Subscriptions
	if patterns {
		most = c.mostNamed()
	}
	if names > most {
		return tooMany(most, names)
	}
	return nil
}

// Events receives the openings and ends of sessions, in order for each session. Its methods
// run under the session's lock: they must not block or call back. All methods may be called
// concurrently.
type Events interface {
	// SessionOpened says that a principal has opened a session. The number is not reused.
	SessionOpened(number uint64, principal string)

	// SessionEnded says why the session ended.
	SessionEnded(number uint64, principal, reason string)
}

// Slots are held by sessions, one each, from their opening to their end.
type Slots interface {
	// Enter takes a slot, or waits for one. of is the memory account of the client's address;
	// nil: none. The error is a *wire.Problem, or ctx's.
	Enter(ctx context.Context, of *memory.Client) error
	Leave()
}

// unbounded is Slots without a bound.
type unbounded struct{}

func (unbounded) Enter(context.Context, *memory.Client) error { return nil }
func (unbounded) Leave()                                      {}

// WithDefaults returns c with every zero field set to its default.
func (c Config) WithDefaults() Config {
	c.Queue = cmp.Or(c.Queue, 32)
	c.Unacked = cmp.Or(c.Unacked, 1024)
	c.Subscriptions = cmp.Or(c.Subscriptions, 1000)
	c.PatternBytes = cmp.Or(c.PatternBytes, 1<<20)
	c.InactivityTimeout = cmp.Or(c.InactivityTimeout, 60*time.Second)
	c.EndedRemembered = cmp.Or(c.EndedRemembered, 10_000)
	c.MaxSessions = cmp.Or(c.MaxSessions, 1_000_000)
	if c.Slots == nil {
		c.Slots = unbounded{}
	}
	return c
}
