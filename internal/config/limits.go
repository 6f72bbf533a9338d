package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/internal/limit"
)

// ratesKey is the section that holds how often calls may come: rates.polls.address.
const ratesKey = "rates"

func rateKey(kind limit.Kind, scope limit.Scope) string {
	return ratesKey + "." + kind.String() + "." + scope.String()
}

// rateSettings returns the table of the rates of every kind in every scope, bound to
// those of r.
func rateSettings(r *limit.Rates) []setting {
	var rows []setting
	for _, kind := range limit.Kinds() {
		for _, scope := range kind.Scopes() {
			rows = append(rows, setting{rateKey(kind, scope), live(rate(&r[kind][scope])), "how often " + ratedKinds[kind] + ratedScopes[scope]})
		}
	}
	return rows
}

// ratedKinds and ratedScopes say in words what is counted, and for whom.
var (
	ratedKinds = map[limit.Kind]string{
		limit.Publishes:   "messages may be published",
		limit.Sessions:    "sessions may be opened",
		limit.Polls:       "polls, and streams of messages, may begin; an ack or a ping on a WebSocket or TCP connection is one",
		limit.Requests:    "other requests may come, and changes of subscriptions on WebSockets and TCP connections",
		limit.Topics:      "topics may be made, by a publish or a subscription",
		limit.Connections: "connections may be made",
		limit.Misses:      "requests may name a session that is not there",
	}
	ratedScopes = map[limit.Scope]string{
		limit.All:       ", by all clients together",
		limit.Address:   ", by each address; an IPv6 network of 64 bits is one",
		limit.Principal: ", by each principal",
	}
)

// otherScopes says what there is in place of the rate of principals that a kind does not
// have, if that is what name is; by is how the source that has it names settings.
func otherScopes(name string, by func(setting) string) string {
	named := func(kind limit.Kind, scope limit.Scope) string { return by(setting{key: rateKey(kind, scope)}) }
	for _, kind := range limit.Kinds() {
		scopes := kind.Scopes()
		if slices.Contains(scopes, limit.Principal) || name != named(kind, limit.Principal) {
			continue
		}
		var there []string
		for _, scope := range scopes {
			there = append(there, named(kind, scope))
		}
		return "; there are only " + andList(there) + ", since who connects, or guesses, has not said who it is"
	}
	return ""
}

// isRate reports whether a setting is one of the many rates.
func (s setting) isRate() bool { return strings.HasPrefix(s.key, ratesKey+".") }

// rate is how often something may happen; nothing is said of it by default.
func rate(to *limit.Rate) field {
	return fieldOf[limit.Rate]{
		to: to, name: "rate",
		may:    "a rate, such as 100/s, 30/m or 100/s burst 500, from 1/h to 1000000000/s, or off",
		parse:  limit.ParseRate,
		format: limit.Rate.String,
		valid:  limit.Rate.Valid,
	}
}

// countOr is a whole number, or by default a word that stands for zero, by which the
// package means so.
func countOr(word string, to *int) field {
	return fieldOf[int]{
		to: to, name: "count",
		may: "a whole number of at least 1, or " + word,
		parse: func(s string) (int, error) {
			if s == word {
				return 0, nil
			}
			n, err := strconv.Atoi(s)
			if n == 0 {
				n = math.MinInt // is to be said by the word
			}
			return n, err
		},
		format: func(n int) string {
			if n == 0 {
				return word
			}
			return strconv.Itoa(n)
		},
		valid: func(n int) bool { return n >= 0 },
	}
}

// wrongLimits looks for limits that cannot do what they are for, since another one
// is reached before.
func wrongLimits(c *Config) []*Error {
	var wrong []*Error
	l := &c.Limit
	if l.Connections > 0 && l.AddressConnections > l.Connections {
		wrong = append(wrong, &Error{Key: "limits.address_connections", with: "limits.connections", Reason: fmt.Sprintf(
			"is %d, more than limits.connections (%d): lower it, or one address may take them all", l.AddressConnections, l.Connections)})
	}
	if l.AddressCalls-l.Calls > l.WaitingCalls {
		wrong = append(wrong, &Error{Key: "limits.address_calls", with: "limits.calls", Reason: fmt.Sprintf(
			"is %d, more than limits.calls and limits.waiting_calls together (%d and %d): lower it, or one address may take them all",
			l.AddressCalls, l.Calls, l.WaitingCalls)})
	}
	if each, all := c.Session.Subscriptions, c.Broker.MaxSubscriptions; each > all {
		wrong = append(wrong, &Error{Key: "limits.subscriptions", with: "limits.all_subscriptions", Reason: fmt.Sprintf(
			"is %d, more than limits.all_subscriptions (%d): lower it, or one session may take them all", each, all)})
	}
	if l.Wait >= c.Transport.WriteTimeout {
		wrong = append(wrong, &Error{Key: "limits.wait", with: "poll.write_timeout", Reason: fmt.Sprintf(
			"is %v, not less than poll.write_timeout (%v): lower it, or who waited that long would get no answer", l.Wait, c.Transport.WriteTimeout)})
	}
	return append(wrong, wrongRates(l)...)
}

// wrongRates looks for rates of some clients above those of all.
func wrongRates(l *limit.Config) []*Error {
	var wrong []*Error
	compare := func(key string, r limit.Rate, kind limit.Kind, otherwise string) {
		if all := l.Rates[kind][limit.All]; all.PerSecond > 0 && r.PerSecond > all.PerSecond {
			with := rateKey(kind, limit.All)
			wrong = append(wrong, &Error{Key: key, with: with, Reason: fmt.Sprintf("is %s, more than %s (%s): lower it, or %s", r, with, all, otherwise)})
		}
	}
	for _, kind := range limit.Kinds() {
		for _, scope := range kind.Scopes() {
			compare(rateKey(kind, scope), l.Rates[kind][scope], kind, "one client may use up what is for all")
		}
	}
	for _, rule := range l.Rules {
		compare(rulesKey+"."+rule.Name+".rate", rule.Rate, limit.Publishes, "raise that: it would never be reached")
	}
	return wrong
}
