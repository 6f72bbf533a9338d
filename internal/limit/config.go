package limit

import (
	"cmp"
	"errors"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// Config bounds what clients may do. The zero value of a field takes its default.
type Config struct {
	// Calls is how many calls may be in flight: publishes and other requests, except
	// polls. Default 1000. WaitingCalls more may wait for a slot. Default 1000.
	Calls, WaitingCalls int

	// Sessions is how many sessions may be open. Default 1,000,000. PendingSessions
	// more may wait for a slot. Default 1000.
	Sessions, PendingSessions int

	// Wait is how long a call or a session waits for a slot before it is refused.
	// Default 2 s.
	Wait time.Duration

	// PendingMessages is how many publishes that name the same session may be in flight or
	// wait. Default 100.
	PendingMessages int

	// Connections is how many there may be, on all ports for clients. Default: not
	// limited.
	Connections int

	// AddressConnections is how many connections one address may have, unless it is a
	// trusted proxy. AddressCalls is how many calls it may have in flight or waiting.
	// Default: not limited.
	AddressConnections, AddressCalls int

	// Rates is how often calls may come. Default: not limited.
	Rates Rates

	// Rules limit the rate of messages by topic. They have the patterns of the rules in
	// broker.Config, which says which rule applies to a topic.
	Rules []Rule

	// TrustedProxies are proxies whose X-Forwarded-For is trusted. See Connection.Who.
	TrustedProxies []netip.Prefix
}

// WithDefaults returns c with every zero field set to its default.
func (c Config) WithDefaults() Config {
	c.Calls = cmp.Or(c.Calls, 1000)
	c.WaitingCalls = cmp.Or(c.WaitingCalls, 1000)
	c.Sessions = cmp.Or(c.Sessions, 1_000_000)
	c.PendingSessions = cmp.Or(c.PendingSessions, 1000)
	c.PendingMessages = cmp.Or(c.PendingMessages, 100)
	c.Wait = cmp.Or(c.Wait, 2*time.Second)
	return c
}

// A Rule limits the rate of messages to all topics of a pattern together.
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
	Sessions         // openings
	Polls            // and streams of messages
	Requests         // all others, and commands on WebSocket and TCP connections
	Topics           // that a publish or a subscription creates
	Connections      // new ones
	Misses           // requests that name an unknown session
	kinds
)

var kindNames = [kinds]string{"publishes", "sessions", "polls", "requests", "topics", "connections", "misses"}

// String returns the kind as settings name it.
func (k Kind) String() string { return kindNames[k] }

// Kinds returns every kind.
func Kinds() []Kind {
	return []Kind{Publishes, Sessions, Polls, Requests, Topics, Connections, Misses}
}

// Scope is whose calls are counted together.
type Scope int

// The scopes, in the order of the checks: a call that exceeds the rate of its address does
// not use up the rate of all clients.
const (
	Address   Scope = iota // an IPv4 address, or the 64 bits of an IPv6 network
	Principal              // except the anonymous one
	All
	scopes
)

var scopeNames = [scopes]string{"address", "principal", "all"}

// String returns the scope as settings name it.
func (s Scope) String() string { return scopeNames[s] }

// Scopes returns the scopes by which a kind can be limited. Connections and misses are
// counted before the principal is known.
func (k Kind) Scopes() []Scope {
	if k == Connections || k == Misses {
		return []Scope{All, Address}
	}
	return []Scope{All, Address, Principal}
}

// Rates is how often calls of a kind may come, by scope.
type Rates [kinds][scopes]Rate

// A Rate is how often something may happen. The zero Rate is no limit.
type Rate struct {
	PerSecond float64
	Burst     int // how many at once; 0: those of one second, at least 1
}

// ParseRate reads "100/s", "30/m", "100/s burst 500" or "off".
func ParseRate(text string) (Rate, error) {
	if text == "off" {
		return Rate{}, nil
	}
	often, burst, bursts := strings.Cut(text, " burst ")
	count, per, _ := strings.Cut(often, "/")
	seconds, known := rateUnits[per]
	if !known || !isDecimal(count) || bursts && !isDecimal(burst) {
		return Rate{}, errRate
	}
	n, err := strconv.ParseFloat(count, 64)
	r := Rate{PerSecond: n / seconds}
	if err == nil && bursts {
		r.Burst, err = strconv.Atoi(burst)
	}
	if err != nil || !r.Valid() || r.PerSecond == 0 || bursts && r.Burst == 0 {
		return Rate{}, errRate
	}
	return r, nil
}

var errRate = errors.New("not a rate")

// isDecimal reports whether s has digits and a point only: no sign, no exponent.
func isDecimal(s string) bool { return s != "" && strings.Trim(s, "0123456789.") == "" }

// Bounds of rates. A higher rate is no limit, and a lower one allows nothing.
const (
	maxPerSecond = 1e9
	minPerSecond = 1.0 / 3600
	maxBurst     = 1e9
)

// Valid reports whether r is off or within the bounds.
func (r Rate) Valid() bool {
	if r.PerSecond == 0 {
		return r.Burst == 0
	}
	return minPerSecond <= r.PerSecond && r.PerSecond <= maxPerSecond && 0 <= r.Burst && r.Burst <= maxBurst
}

// String writes r as ParseRate reads it.
func (r Rate) String() string {
	if r.PerSecond == 0 {
		return "off"
	}
	text := strconv.FormatFloat(r.PerSecond, 'f', -1, 64) + "/s"
	for _, unit := range []string{"s", "m", "h"} { // the first that makes it a whole number
		if n := math.Round(r.PerSecond * rateUnits[unit]); n/rateUnits[unit] == r.PerSecond {
			text = strconv.FormatFloat(n, 'f', -1, 64) + "/" + unit
			break
		}
	}
	if r.Burst > 0 {
		text += " burst " + strconv.Itoa(r.Burst)
	}
	return text
}

// rateUnits are the seconds of the units.
var rateUnits = map[string]float64{"s": 1, "m": 60, "h": 3600}

// bucket returns a full bucket of the rate.
func (r Rate) bucket() *rate.Limiter {
	burst := r.Burst
	if burst == 0 {
		burst = max(1, int(math.Ceil(r.PerSecond)))
	}
	return rate.NewLimiter(rate.Limit(r.PerSecond), burst)
}
