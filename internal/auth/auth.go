// Package auth identifies the principal of a request, and decides what the principal may do.
package auth

import (
	"crypto/tls"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/problem"
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
	Key             [32]byte  // what verified the credentials: see key; of an API key its SHA-256; zero: anonymous
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

// Allow returns nil if the grant includes a right on a topic, or on everything that a pattern
// matches. One name in one entry must cover a pattern: several that together match all of its
// topics are not enough. A presence topic needs the right Presence on the topic that it is about.
// Otherwise the error is a *wire.Problem: unauthorized for an anonymous caller, forbidden for a
// principal.
func (g *Grant) Allow(r Right, name string) error {
	if g.Rights.all {
		return nil
	}
	r, name = needed(r, name)
	if slices.ContainsFunc(g.Rights.entries, func(e entry) bool {
		return slices.Contains(e.allow, r) && slices.ContainsFunc(e.topics, func(by string) bool { return covers(by, name) })
	}) {
		return nil
	}
	return g.lacks(r, wire.Quote(name))
}

// needed returns the right that a right on a name needs. To read a presence topic is to
// learn who is on the topic that it is about.
func needed(r Right, name string) (Right, string) {
	if about, ok := wire.PresenceOf(name); ok && (r == Subscribe || r == History) {
		return Presence, about
	}
	return r, name
}

// AllowSome returns nil if the grant includes a right on some topic. The error is that of Allow.
func (g *Grant) AllowSome(r Right) error {
	if len(g.Rights.Names(r)) > 0 {
		return nil
	}
	return g.lacks(r, "any topic")
}

// lacks returns the refusal of a grant that lacks a right. what names the topic.
func (g *Grant) lacks(r Right, what string) error {
	switch {
	case g == Ticket:
		return problem.New(wire.CodeUnauthorized, `send {"auth":"…"} with a token first`,
			"a session's id alone permits only receiving, acknowledging and closing")
	case g.Subject == "":
		return problem.New(wire.CodeUnauthorized, "send a token with this right: Authorization: Bearer …",
			"a client without credentials may not %s %s", r.verb(), what)
	}
	return problem.New(wire.CodeForbidden, "ask for a token that has the right "+string(r)+" on "+what,
		"%s may not %s %s", wire.Quote(g.Subject), r.verb(), what)
}

// AllowAny returns nil if the grant is a principal's, or has a right. Otherwise the error is a
// *wire.Problem, unauthorized.
func (g *Grant) AllowAny() error {
	if g.Subject != "" || g.Rights.all || len(g.Rights.entries) > 0 {
		return nil
	}
	return problem.New(wire.CodeUnauthorized, "send a token: Authorization: Bearer …", "a client without credentials may not open a session")
}

// Open is the authority of a daemon without authorisation. It ignores credentials: every caller
// is Anyone.
type Open struct{}

// Anyone is the grant of every caller of a daemon without authorisation.
var Anyone = &Grant{Rights: Everything}

// Ticket is the grant of a caller without credentials who knows the id of a principal's session. It
// has no rights: the id alone permits to receive, to acknowledge and to close.
var Ticket = &Grant{}

// Identify returns Anyone.
func (Open) Identify(Credentials, bool) (*Grant, error) { return Anyone, nil }

// Revoked returns false.
func (Open) Revoked(*Grant) bool { return false }
