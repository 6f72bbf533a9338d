// Package cors decides which pages of other origins may use the daemon, under which names
// it may be addressed, and sets the headers for browsers (Fetch standard, section "CORS
// protocol").
package cors

import (
	"net/http"
	"time"

	"go.uber.org/zap"
)

// Every allows all origins, if it is alone in the list.
const Every = "*"

// Expose lists the headers that a page may read besides the default ones.
const Expose = "Retry-After, X-Request-Id"

// A Policy allows no origins, some, or all. It gives each origin an index: requests with
// the same index get the same headers. All methods may be called concurrently.
type Policy struct {
	allowed    []string       // by index: the allowed origin in answers; empty: none
	index      map[string]int // of the listed origins
	protection http.CrossOriginProtection
	refusals   *refusals
}

// New returns a policy that allows these origins. They are written as a browser sends
// them, scheme://host[:port], or are Every alone. log gets the origins that are refused.
func New(origins []string, log *zap.Logger) *Policy {
	if len(origins) == 1 && origins[0] == Every {
		return &Policy{allowed: []string{Every}}
	}
	p := &Policy{allowed: []string{""}, index: make(map[string]int, len(origins)), refusals: newRefusals(log)}
	for _, origin := range origins {
		if err := p.protection.AddTrustedOrigin(origin); err != nil {
			panic("BUG: an origin was not validated: " + err.Error())
		}
		p.index[origin] = len(p.allowed)
		p.allowed = append(p.allowed, origin)
	}
	return p
}

// Index returns the index of a request with this Origin. It is 0 without an origin and
// for an origin that is not allowed. If all origins are allowed, it is always 0, because
// all answers are equal.
func (p *Policy) Index(origin string) int { return p.index[origin] }

// Indices returns the number of indices.
func (p *Policy) Indices() int { return len(p.allowed) }

// Allowed returns the Access-Control-Allow-Origin of an index, or "".
func (p *Policy) Allowed(index int) string { return p.allowed[index] }

// Varies reports whether answers differ by Origin. If so, every answer has the header
// Vary, also one to a request without an origin. Otherwise a cache could give such an
// answer to a page (Fetch standard, section "CORS protocol and HTTP caches").
func (p *Policy) Varies() bool { return len(p.allowed) > 1 }

// Allows reports whether pages of this origin may do the same as pages of the daemon's
// own origin.
func (p *Policy) Allows(origin string) bool { return p.every() || p.index[origin] > 0 }

func (p *Policy) every() bool { return p.allowed[0] == Every }

// Announce sets the headers of an answer to a request with this Origin. The daemon uses
// no cookies, so it sets no header about credentials.
func (p *Policy) Announce(h http.Header, origin string) {
	if allowed := p.Allowed(p.Index(origin)); allowed != "" {
		h.Set("Access-Control-Allow-Origin", allowed)
		h.Set("Access-Control-Expose-Headers", Expose)
	}
	if p.Varies() {
		h.Set("Vary", "Origin")
	}
}

// Check returns an error if r could change something and comes from a page whose origin
// is neither the daemon's own nor allowed.
func (p *Policy) Check(r *http.Request) error {
	if p.every() {
		return nil
	}
	return p.protection.Check(r)
}

// CheckPage returns an error if r comes from a page whose origin is neither the daemon's own
// nor allowed, whatever r asks for.
func (p *Policy) CheckPage(r *http.Request) error {
	if p.Allows(r.Header.Get("Origin")) {
		return nil
	}
	asked := *r
	asked.Method = http.MethodPost
	return p.Check(&asked)
}

// LogRefused logs an origin whose page was refused, or may not read an answer: once a
// minute each, and at most maxRefused in a minute.
func (p *Policy) LogRefused(origin string) {
	if p.Allows(origin) || !isOrigin(origin) || !p.refusals.isDue(origin, time.Now()) {
		return
	}
	why := "a page was refused: to allow its origin, add it to cors.origins; http://localhost and http://127.0.0.1 are different origins, and so are different ports"
	if origin == opaque {
		why = "a page without an origin was refused, such as one opened from a file: serve it over HTTP and add its origin to cors.origins"
	}
	p.refusals.log.Warn(why, zap.String("origin", origin))
}
