package limit

import (
	"cmp"
	"net/netip"
	"time"
)

// Config bounds what clients may do. The zero value of a field takes its default.
type Config struct {
	// Calls is how many calls may be in flight: publishes and other requests, but for
	// polls. Default 1000. WaitingCalls more wait for a place. Default 1000.
	Calls, WaitingCalls int

	// Sessions is how many there may be. Default 1,000,000. PendingSessions more wait
	// for a place. Default 1000.
	Sessions, PendingSessions int

	// Wait is how long a call or a session waits for a place before it is refused.
	// Default 2 s.
	Wait time.Duration

	// PendingMessages is how many publishes that name their session may be in flight
	// or wait, per session. Default 100.
	PendingMessages int

	// Connections is how many there may be, on all ports for clients. Default: no
	// bound of ours.
	Connections int

	// AddressConnections and AddressCalls are how many connections there may be from
	// one address, and calls in flight or waiting. Default: no bound. The first does
	// not hold for trusted proxies.
	AddressConnections, AddressCalls int

	// Rates is how often calls may come. Default: no bound.
	Rates Rates

	// Rules say how often may be published to the topics of some patterns. As in
	// broker.Config, of several that match a topic the most specific counts.
	Rules []Rule

	// TrustedProxies are those whose word is taken for where a request comes from. See
	// Limiter.Who.
	TrustedProxies []netip.Prefix
}

// Defaults of Config.
const (
	DefaultCalls           = 1000
	DefaultWaitingCalls    = 1000
	DefaultSessions        = 1_000_000
	DefaultPendingSessions = 1000
	DefaultPendingMessages = 100
	DefaultWait            = 2 * time.Second
)

func (c Config) withDefaults() Config {
	c.Calls = cmp.Or(c.Calls, DefaultCalls)
	c.WaitingCalls = cmp.Or(c.WaitingCalls, DefaultWaitingCalls)
	c.Sessions = cmp.Or(c.Sessions, DefaultSessions)
	c.PendingSessions = cmp.Or(c.PendingSessions, DefaultPendingSessions)
	c.PendingMessages = cmp.Or(c.PendingMessages, DefaultPendingMessages)
	c.Wait = cmp.Or(c.Wait, DefaultWait)
	return c
}

// A Rule says how often may be published to all topics of a pattern together.
type Rule struct {
	Name    string // in the configuration
	Pattern string // see wire.CheckPattern
	Rate    Rate
}

// Kind is a kind of call whose rate can be limited.
type Kind int

// The kinds.
const (
	Publishes   Kind = iota
	Sessions         // that are opened
	Polls            // streams of messages, too
	Requests         // all others, and commands on connections that go both ways
	Topics           // that are made, by a publish or a subscription
	Connections      // that are made
	Misses           // requests that name a session which is not there
	kinds
)

var kindNames = [kinds]string{"publishes", "sessions", "polls", "requests", "topics", "connections", "misses"}

// String returns the kind as settings name it.
func (k Kind) String() string { return kindNames[k] }

// Kinds returns every kind.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// Scope is whose calls are counted together.
type Scope int

// The scopes, in the order in which they are asked: what one client has too much of is
// not taken from all.
const (
	Address   Scope = iota // an IPv4 address, or the 64 bits of an IPv6 network
	Principal              // but for the anonymous
	All
	scopes
)

var scopeNames = [scopes]string{"address", "principal", "all"}

// String returns the scope as settings name it.
func (s Scope) String() string { return scopeNames[s] }

// Scopes returns the scopes by which a kind can be limited: who connects, or guesses,
// has not said who it is.
func (k Kind) Scopes() []Scope {
	if k == Connections || k == Misses {
		return []Scope{All, Address}
	}
	return []Scope{All, Address, Principal}
}

// Rates is how often calls of a kind may come, by scope.
type Rates [kinds][scopes]Rate
