package limit

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// rates are the rates in force, with the buckets that all clients share.
type rates struct {
	each   Rates
	limits [kinds]bool // whether a scope of the kind has a rate
	all    [kinds]*rate.Limiter
	given  []Rule
	rules  map[string]*ruled // those with a rate, by pattern
}

// A ruled is a rule with its bucket.
type ruled struct {
	Rule
	bucket *rate.Limiter
}

// newRates returns full buckets. Counters of the rates begin at 0, unless they exist.
func (l *Limiter) newRates(cfg Config) *rates {
	r := &rates{each: cfg.Rates, given: cfg.Rules, rules: make(map[string]*ruled)}
	for kind := range r.each {
		for scope, each := range r.each[kind] {
			if each.PerSecond == 0 {
				continue
			}
			r.limits[kind] = true
			l.metrics.Limited.WithLabelValues(rateName(Kind(kind), Scope(scope)))
			if Scope(scope) == All {
				r.all[kind] = each.bucket()
			}
		}
	}
	for _, rule := range cfg.Rules {
		if rule.Rate.PerSecond > 0 {
			r.rules[rule.Pattern] = &ruled{rule, rule.Rate.bucket()}
			l.metrics.Limited.WithLabelValues(rule.rateName())
		}
	}
	return r
}

// equal reports whether cfg has the same rates.
func (r *rates) equal(cfg Config) bool {
	return r.each == cfg.Rates && slices.Equal(r.given, cfg.Rules)
}

// bucket returns the bucket for calls of a kind by w in a scope, or nil if they are not
// limited.
func (l *Limiter) bucket(r *rates, kind Kind, scope Scope, w Who, now time.Time) *rate.Limiter {
	switch {
	case r.each[kind][scope].PerSecond == 0:
		return nil
	case scope == All:
		return r.all[kind]
	case scope == Address && w.source != nil:
		return w.source.bucket(r, kind, Address)
	case scope == Principal && w.principal != "":
		return l.principals.get(w.principal, now).bucket(r, kind, Principal)
	}
	return nil
}

// buckets are those of one source, made for these rates.
type buckets struct {
	rates *rates
	of    [kinds]atomic.Pointer[rate.Limiter]
}

// full reports whether all of them are full.
func (b *buckets) full(now time.Time) bool {
	for kind := range b.of {
		if l := b.of[kind].Load(); l != nil && l.TokensAt(now) < float64(l.Burst()) {
			return false
		}
	}
	return true
}
