// Package auth identifies the principal of a request, and decides what the principal may do.
package auth

import (
	"crypto/tls"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Credentials are what a request carries to identify its sender. Only the certificate is
// verified. Never log them.
type Credentials struct {
	Authorization string // the raw header; empty: none
	Token         string // from the query, a subprotocol or a connection's first item; empty: none

	// Certificate is the connection on which the client showed a certificate, which TLS has
	// verified. Nil: it showed none.
	Certificate *tls.ConnectionState
}

// A Grant is what one principal may do. All calls with the same credentials share it. It is
// immutable. Messages keep its Subject and its Claims, which must share no memory with a
// request: at most wire.MaxByBytes of UTF-8, and wire.MaxClaimsBytes of compact JSON.
type Grant struct {
	Subject         string    // the principal; empty: anonymous
	TokenID         string    // jti; empty: none
	Key             [32]byte  // what verified the credentials: see keyPrint; of an API key its SHA-256; zero: anonymous
	Issued, Expires time.Time // of the token or certificate; zero: an API key or anonymous, never expires
	Claims          []byte    // public claims of the token, a JSON object; nil: none
	Rights          Rights

	by digest // of a token: its key, with the id and the algorithm by which its header named it
}

// HasExpired reports whether the grant has expired.
func (g *Grant) HasExpired(now time.Time) bool { return !g.Expires.IsZero() && !now.Before(g.Expires) }

// ExpiresMS returns the time until the grant expires, in whole milliseconds, at least 1; 0:
// it never does.
func (g *Grant) ExpiresMS(now time.Time) int64 {
	if g.Expires.IsZero() {
		return 0
	}
	return max(1, g.Expires.Sub(now).Milliseconds())
}

// Renews reports whether g can replace old, another grant of the same principal: a token or
// certificate that was issued later, or in the same second and expires no earlier. An API
// key replaces any.
func (g *Grant) Renews(old *Grant) bool {
	switch {
	case g == old:
		return false
	case g.Issued.IsZero() || old.Issued.IsZero():
		return true
	case g.Issued.Equal(old.Issued):
		return !g.Expires.Before(old.Expires)
	}
	return g.Issued.After(old.Issued)
}

// Open is the authority of a daemon without authorisation. Every principal is anonymous and
// may do everything. Credentials are ignored.
type Open struct{}

// Anyone is an anonymous grant without rights.
var Anyone = &Grant{}

// Identify returns Anyone.
func (Open) Identify(Credentials, bool) (*Grant, error) { return Anyone, nil }

// Revoked returns false.
func (Open) Revoked(*Grant) bool { return false }

// Allow allows everything.
func (Open) Allow(*Grant, Right, string) error { return nil }

// AllowAny allows everything.
func (Open) AllowAny(*Grant) error { return nil }

// Names returns what begins every topic: wildcards do not match the daemon's own topics.
func (Open) Names(*Grant, Right) []string { return []string{">", "_>"} }

// Allow returns nil if a grant includes a right on a topic, or on everything that a pattern
// matches. Otherwise the error is a *wire.Problem: unauthorized for an anonymous caller,
// forbidden for a principal.
func Allow(g *Grant, r Right, name string) error {
	r, name = needed(r, name)
	if g.Rights.Allow(r, name) {
		return nil
	}
	return Lacks(g, r, wire.Quote(name))
}

// Lacks returns the refusal of a grant that lacks a right. what names the topic.
func Lacks(g *Grant, r Right, what string) error {
	if g.Subject == "" {
		return wire.NewProblem(wire.CodeUnauthorized, "send a token with this right: Authorization: Bearer …",
			"a client without credentials may not %s %s", r.verb(), what)
	}
	return wire.NewProblem(wire.CodeForbidden, "ask for a token that has the right "+string(r)+" on "+what,
		"%s may not %s %s", wire.Quote(g.Subject), r.verb(), what)
}

// AllowAny returns nil if a grant is a principal's, or has a right. Otherwise the error is a
// *wire.Problem, unauthorized.
func AllowAny(g *Grant) error {
	if g.Subject != "" || len(g.Rights.entries) > 0 {
		return nil
	}
	return wire.NewProblem(wire.CodeUnauthorized, "send a token: Authorization: Bearer …", "a client without credentials may not open a session")
}
