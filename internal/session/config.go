package session

import (
	"cmp"
	"context"
	"time"
)

// Config bounds sessions. The zero value of a field takes its default.
type Config struct {
	// Queue is how many frames a session buffers before a topic falls behind and
	// waits in the history. Default 32: an idle session pays for all of them.
	Queue int

	// Unacked is how many frames are kept that were sent and not yet acked; an
	// answer ends there. Default 1024.
	Unacked int

	// Subscriptions is how many topics one session may hold. Default 1000.
	Subscriptions int

	// InactivityTimeout ends a session that no poll was parked on or answered
	// for that long. Default 60 s.
	InactivityTimeout time.Duration

	// EndedRemembered is how many ended sessions are answered 410 with the
	// reason rather than 404. Default 10,000.
	EndedRemembered int

	// MaxSessions bounds the sessions without an id: of stateless polls, and of
	// connections that go both ways. One more is answered with the problem
	// overloaded. Default 1,000,000.
	MaxSessions int

	// Places are what all other sessions take up. Default: any number.
	Places Places
}

// Places are taken by sessions, one each, from their opening to their end.
type Places interface {
	// Enter takes a place, now or after a wait. The error is a *wire.Problem, or ctx's.
	Enter(ctx context.Context) error
	Leave()
}

// anyNumber is Places without a bound.
type anyNumber struct{}

func (anyNumber) Enter(context.Context) error { return nil }
func (anyNumber) Leave()                      {}

// Defaults of Config.
const (
	DefaultQueue             = 32
	DefaultUnacked           = 1024
	DefaultSubscriptions     = 1000
	DefaultInactivityTimeout = 60 * time.Second
	DefaultEndedRemembered   = 10_000
	DefaultMaxSessions       = 1_000_000
)

func (c Config) withDefaults() Config {
	c.Queue = cmp.Or(c.Queue, DefaultQueue)
	c.Unacked = cmp.Or(c.Unacked, DefaultUnacked)
	c.Subscriptions = cmp.Or(c.Subscriptions, DefaultSubscriptions)
	c.InactivityTimeout = cmp.Or(c.InactivityTimeout, DefaultInactivityTimeout)
	c.EndedRemembered = cmp.Or(c.EndedRemembered, DefaultEndedRemembered)
	c.MaxSessions = cmp.Or(c.MaxSessions, DefaultMaxSessions)
	return c
}
