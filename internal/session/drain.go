package session

import "github.com/pubsubd/pubsubd/pkg/wire"

// A Drain ends the sessions that were open when it began. It is for one goroutine;
// sessions that it has not come to are served as ever, and may end by themselves.
type Drain struct {
	registry *Registry
	why      *wire.Problem
	left     []*Session
}

// BeginDrain refuses new sessions from now on, for the reason given, and those of
// stateless polls, too. Those that are open are for the Drain to end, in the order of
// their random ids' hashes: clients that came together should not leave together.
func (r *Registry) BeginDrain(why *wire.Problem) *Drain {
	r.draining.Store(why)
	d := &Drain{registry: r, why: why}
	r.sessions.each(func(s *Session) { d.left = append(d.left, s) }) // whoever is listed later ends itself
	return d
}

// Left returns how many sessions are left, with those that have ended by
// themselves.
func (d *Drain) Left() int { return len(d.left) }

// End ends n of the sessions that are left, or all there are; none if n is negative.
// Their polls are told why, with the positions that each has acked.
func (d *Drain) End(n int) {
	n = min(max(n, 0), len(d.left))
	for _, s := range d.left[:n] {
		d.registry.end(s, d.why, EndedDraining)
	}
	clear(d.left[:n])
	d.left = d.left[n:]
}

// Drain is BeginDrain and the end of all at once.
func (r *Registry) Drain(why *wire.Problem) {
	d := r.BeginDrain(why)
	d.End(d.Left())
}
