// Package cors says which pages of other origins may use the daemon, and what
// answers tell their browsers (Fetch standard, section "CORS protocol").
package cors

import "net/http"

// Every is the origin that stands for all of them, if it stands alone.
const Every = "*"

// Expose lists the headers that a page may read besides those it always may.
const Expose = "Retry-After"

// A Policy is which origins are allowed: none, some or every. Answers differ by
// the index that it gives the origin of a request, and by nothing else of it. It is
// immutable.
type Policy struct {
	allowed    []string       // what answers of each index tell is allowed; empty: nothing
	index      map[string]int // of the origins that are listed
	protection http.CrossOriginProtection
}

// New returns the policy that allows origins, which are as a browser sends them:
// scheme://host[:port], or Every alone.
func New(origins []string) *Policy {
	if len(origins) == 1 && origins[0] == Every {
		return &Policy{allowed: []string{Every}}
	}
	p := &Policy{allowed: []string{""}, index: make(map[string]int, len(origins))}
	for _, origin := range origins {
		if err := p.protection.AddTrustedOrigin(origin); err != nil {
			panic("BUG: nobody has validated an origin: " + err.Error())
		}
		p.index[origin] = len(p.allowed)
		p.allowed = append(p.allowed, origin)
	}
	return p
}

// Index returns which of the answers a request with this Origin gets. It is 0
// where none is sent, or one that is not allowed; and where every origin is,
// because all answers are alike then.
func (p *Policy) Index(origin string) int { return p.index[origin] }

// Indices returns how many there are.
func (p *Policy) Indices() int { return len(p.allowed) }

// Allowed returns the Access-Control-Allow-Origin of answers of an index, or "".
func (p *Policy) Allowed(index int) string { return p.allowed[index] }

// Varies reports whether answers differ by Origin. Then all say so, to requests
// without one, too: a cache must not answer a page with them (Fetch standard,
// section "CORS protocol and HTTP caches").
func (p *Policy) Varies() bool { return len(p.allowed) > 1 }

// Allows reports whether pages of this origin may do all that a page of the
// daemon's own may.
func (p *Policy) Allows(origin string) bool { return p.every() || p.index[origin] > 0 }

func (p *Policy) every() bool { return p.allowed[0] == Every }

// Announce sets what an answer to a request with this Origin tells. There are no
// cookies, so nothing is said of credentials.
func (p *Policy) Announce(h http.Header, origin string) {
	if allowed := p.Allowed(p.Index(origin)); allowed != "" {
		h.Set("Access-Control-Allow-Origin", allowed)
		h.Set("Access-Control-Expose-Headers", Expose)
	}
	if p.Varies() {
		h.Set("Vary", "Origin")
	}
}

// Check returns an error if r would change something for a page whose origin is
// neither the daemon's own nor allowed.
func (p *Policy) Check(r *http.Request) error {
	if p.every() {
		return nil
	}
	return p.protection.Check(r)
}
