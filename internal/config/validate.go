package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// Validate returns every reason why the daemon must not start with c, joined, or
// nil. It checks the bounds of each field and settings that contradict each other,
// reads the certificate's files, and refuses listeners that other machines can
// reach without authorisation.
func (c Config) Validate() error {
	m := outOfBounds(&c)
	m = append(m, contradictions(&c)...)
	return m.join()
}

// Doubts returns warnings: settings of c that are allowed but may be a mistake, each
// with what to do about it.
func (c Config) Doubts() []string {
	if c.PublishHook.URL == "" || c.PublishHook.Calls < c.Limit.Calls {
		return nil
	}
	return []string{fmt.Sprintf("hooks.publish.calls is %d, not less than limits.calls (%d): publishes that wait for a slow application "+
		"may take all of limits.calls; lower it, or raise limits.calls, to leave some for other requests", c.PublishHook.Calls, c.Limit.Calls)}
}

func outOfBounds(c *Config) mistakes {
	var m mistakes
	for _, s := range allSettings(c) {
		if err := s.check(); err != nil {
			m.add(s.key, "", "is %q: %s", s.shownRefused(s.text()), err)
		}
	}
	return m
}

// contradictions checks settings that are valid one by one.
func contradictions(c *Config) mistakes {
	var m mistakes
	t := &c.Transport
	if c.Broker.HistoryBytes < c.MessageBytes {
		m.add("history.bytes", "message.bytes", "is %s, less than message.bytes (%s): raise it, or one message may exceed the whole history",
			formatSize(c.Broker.HistoryBytes), formatSize(c.MessageBytes))
	}
	if c.mostBudget() < c.Broker.HistoryBytes {
		m.add("memory.budget", "history.bytes", "is %s, less than history.bytes (%s): raise it, or one topic may exceed it",
			formatSize(c.mostBudget()), formatSize(c.Broker.HistoryBytes))
	}
	checkAddresses(&m, &c.Listen)
	if t.WriteTimeout <= t.MaxOutputDelay {
		m.add("poll.write_timeout", "poll.max_output_delay", "is %v, not more than poll.max_output_delay (%v): raise it, or the daemon cuts answers off before their end",
			t.WriteTimeout, t.MaxOutputDelay)
	}
	checkTLS(&m, c.TLS)
	checkRules(&m, c)
	if h := &c.PublishHook; h.URL != "" && h.Secret == "" {
		m.add("hooks.publish.url", "hooks.publish.secret", "is %q, but hooks.publish.secret is missing: "+
			"set a key that the application also knows, such as the output of `openssl rand -base64 32`", h.URL)
	}
	checkLimits(&m, c)
	checkRates(&m, &c.Limit)
	if !c.Insecure {
		checkExposure(&m, &c.Listen)
	}
	return m
}

// mostBudget is memory.budget, or its highest value if the daemon chooses it.
func (c *Config) mostBudget() int {
	return cmp.Or(c.Broker.MemoryBudget, memory.DefaultBudget)
}

// checkAddresses refuses one address for two listeners.
func checkAddresses(m *mistakes, l *Listen) {
	refuse := func(key, address, with, other string) {
		if _, port, err := net.SplitHostPort(address); err == nil && port != "0" && address == other {
			m.add(key, with, "is %q, which is also %s: choose another port", address, with)
		}
	}
	refuse("listen.admin", l.Admin, "listen.public", l.Public)
	refuse("listen.tcp", l.TCP, "listen.public", l.Public)
	refuse("listen.tcp", l.TCP, "listen.admin", l.Admin)
}

// checkExposure refuses addresses that other machines can reach. A loopback address
// is no proof of safety, since a proxy may forward to it; but to forget this is the
// most common mistake.
func checkExposure(m *mistakes, l *Listen) {
	refuse := func(key, address, danger string) {
		if isAddress(address) && !isLoopback(address) {
			m.add(key, "", "is %q, which other machines may reach, and no authorisation is configured: anyone could %s. "+
				"Listen on 127.0.0.1, or set --insecure (insecure: true) to serve everyone who can connect", address, danger)
		}
	}
	refuse("listen.public", l.Public, "publish and subscribe to everything")
	refuse("listen.tcp", l.TCP, "publish and subscribe to everything")
	refuse("listen.admin", l.Admin, "read metrics and profiles")
}

// checkTLS refuses half of a pair, and files that are not a pair.
func checkTLS(m *mistakes, t TLS) {
	const orNone = "or leave both out to serve without TLS"
	switch {
	case t.Cert == "" && t.Key == "":
	case t.Key == "":
		m.add("tls.cert", "", "is %q, but tls.key is missing: name the file of its private key, %s", t.Cert, orNone)
	case t.Cert == "":
		m.add("tls.key", "", "is %q, but tls.cert is missing: name the file of its certificate, %s", t.Key, orNone)
	default:
		if _, err := t.Load(); err != nil {
			e, _ := errors.AsType[*Error](err)
			*m = append(*m, e)
		}
	}
}

// checkRules checks rules whose settings are valid one by one.
func checkRules(m *mistakes, c *Config) {
	if n := len(c.Broker.Rules); n > maxRules {
		m.add(rulesKey, "", "holds %d rules: want at most %d; a pattern may match many topics", n, maxRules)
	}
	names := make(map[string]string) // by pattern
	for _, rule := range c.Broker.Rules {
		at := rulesKey + "." + rule.Name
		switch other, double := names[rule.Pattern]; {
		case !isRuleName(rule.Name):
			m.add(at, "", "is not a rule's name: want %s", ruleNameForm)
		case rule.Pattern == "":
			m.add(at+".pattern", "", "is missing: name the topics that the rule applies to, such as pattern: prices.>")
		case double:
			m.add(at+".pattern", "", "is %q, which is also the pattern of rule %s: put both into one rule", rule.Pattern, other)
		default:
			names[rule.Pattern] = rule.Name
		}
		if rule.HistoryBytes > 0 && rule.HistoryBytes < c.MessageBytes {
			m.add(at+".history.bytes", "", "is %s, less than message.bytes (%s): raise it, or one message may exceed the whole history",
				formatSize(rule.HistoryBytes), formatSize(c.MessageBytes))
		}
		if rule.HistoryBytes > c.mostBudget() {
			m.add(at+".history.bytes", "", "is %s, more than memory.budget (%s): lower it, or raise memory.budget",
				formatSize(rule.HistoryBytes), formatSize(c.mostBudget()))
		}
		if rule.Keep > 0 && rule.Slow != broker.DropOldest {
			m.add(at+".keep", "", "is %d, but applies only with slow: %[2]s: set slow: %[2]s, or leave keep out", rule.Keep, broker.DropOldest)
		}
	}
}

// checkLimits refuses limits that have no effect, because another limit is lower.
func checkLimits(m *mistakes, c *Config) {
	l := &c.Limit
	if l.Connections > 0 && l.AddressConnections > l.Connections {
		m.add("limits.address_connections", "limits.connections", "is %d, more than limits.connections (%d): lower it, or one address may take them all",
			l.AddressConnections, l.Connections)
	}
	if l.AddressCalls-l.Calls > l.WaitingCalls {
		m.add("limits.address_calls", "limits.calls", "is %d, more than limits.calls and limits.waiting_calls together (%d and %d): lower it, or one address may take them all",
			l.AddressCalls, l.Calls, l.WaitingCalls)
	}
	if each, all := c.Session.Subscriptions, c.Broker.MaxSubscriptions; each > all {
		m.add("limits.subscriptions", "limits.all_subscriptions", "is %d, more than limits.all_subscriptions (%d): lower it, or one session may take them all", each, all)
	}
	if l.Wait >= c.Transport.WriteTimeout {
		m.add("limits.wait", "poll.write_timeout", "is %v, not less than poll.write_timeout (%v): lower it, or a request that waits that long gets no answer",
			l.Wait, c.Transport.WriteTimeout)
	}
}

// checkRates refuses rates of some clients above the rate of all.
func checkRates(m *mistakes, l *limit.Config) {
	compare := func(key string, r limit.Rate, kind limit.Kind, advice string) {
		if all := l.Rates[kind][limit.All]; all.PerSecond > 0 && r.PerSecond > all.PerSecond {
			with := rateKey(kind, limit.All)
			m.add(key, with, "is %s, more than %s (%s): lower it, or %s", r, with, all, advice)
		}
	}
	for _, kind := range limit.Kinds() {
		for _, scope := range kind.Scopes() {
			compare(rateKey(kind, scope), l.Rates[kind][scope], kind, "one client may use up the rate of all")
		}
	}
	for _, rule := range l.Rules {
		compare(rulesKey+"."+rule.Name+".rate", rule.Rate, limit.Publishes, "raise "+rateKey(limit.Publishes, limit.All)+": the lower one always applies first")
	}
}
