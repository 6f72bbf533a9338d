package limit

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// rates are the rates in force, with the buckets that all clients share.
type rates struct {
	each    Rates
	limits  [kinds]bool // whether a scope of the kind has a rate
	all     [kinds]*rate.Limiter
	byTopic bool // some rule has a rate
	given   []Rule
	rules   []*ruled

	mu    sync.Mutex // guards known
	known map[string]*ruled
}

// A ruled is a rule with its bucket.
type ruled struct {
	Rule
	bucket *rate.Limiter // nil: not limited
}

// newRates returns full buckets. Counters of the rates begin at 0, unless they exist.
func (l *Limiter) newRates(cfg Config) *rates {
	r := &rates{each: cfg.Rates, given: cfg.Rules, known: make(map[string]*ruled)}
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
		rd := &ruled{Rule: rule}
		if rule.Rate.PerSecond > 0 {
			rd.bucket = rule.Rate.bucket()
			r.byTopic = true
			l.metrics.Limited.WithLabelValues(rule.rateName())
		}
		r.rules = append(r.rules, rd)
	}
	return r
}

// equal reports whether cfg has the same rates.
func (r *rates) equal(cfg Config) bool {
	return r.each == cfg.Rates && slices.Equal(r.given, cfg.Rules)
}

// of returns the rule that applies to a topic, or nil if that rule has no rate.
func (r *rates) of(topic string) *ruled {
	r.mu.Lock()
	defer r.mu.Unlock()
	rule, ok := r.known[topic]
	if !ok {
		rule = r.find(topic)
		if len(r.known) >= maxKnown {
			clear(r.known)
		}
		r.known[strings.Clone(topic)] = rule // a substring would keep a whole request
	}
	return rule
}

// maxKnown bounds the topics whose rule is remembered.
const maxKnown = 10_000

func (r *rates) find(topic string) *ruled {
	var best *ruled
	for _, rule := range r.rules {
		if wire.Matches(rule.Pattern, topic) && (best == nil || wire.MoreSpecific(rule.Pattern, best.Pattern)) {
			best = rule
		}
	}
	if best == nil || best.bucket == nil {
		return nil
	}
	return best
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
