package config

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/store"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Validate returns every reason why the daemon must not start with c, joined, or
// nil. It checks the bounds of each field and settings that contradict each other,
// reads the certificate's files, and refuses listeners that other machines can
// reach without authorisation.
func (c Config) Validate() error {
	var m mistakes
	for _, s := range allSettings(&c) {
		err := s.check()
		m.check(err == nil, s.key, "", "is %q: %v", s.shownRefused(s.text()), err)
	}
	return append(m, contradictions(&c)...).join()
}

// Warnings returns the settings of c that are allowed but may be a mistake, and what to do
// about each.
func (c Config) Warnings() (warnings []string) {
	warn := func(key string, h hook.Config, waiting string) {
		if h.URL != "" && h.Calls >= c.Limit.Calls {
			warnings = append(warnings, fmt.Sprintf("%s.calls is %d, not less than limits.calls (%d): %s that wait for a slow application "+
				"may take all of limits.calls; lower it, or raise limits.calls, to leave some for other requests", key, h.Calls, c.Limit.Calls, waiting))
		}
	}
	if c.Store.Bytes > 0 && c.Store.Dir == "" {
		warnings = append(warnings, "store.bytes has no effect without a log: set store.dir (--store) to the folder of the log")
	}
	if c.Store.Bytes > 0 && c.Store.Sync == store.SyncStop {
		warnings = append(warnings, "store.bytes has no effect with store.sync: stop, because nothing is written while the daemon runs: memory.budget limits the topics")
	}
	if c.Store.Sync == store.SyncStop && c.Store.Dir == "" {
		warnings = append(warnings, "store.sync: stop has no effect without a folder: set store.dir (--store), or each restart loses the topics")
	}
	if c.Auth.LacksAPIKeys() {
		warnings = append(warnings, fmt.Sprintf("auth.api_keys is %q, which does not exist: the daemon starts without API keys; create the first with "+
			"`pubsubd key new`, which a running daemon reads within a second, or correct the path", c.Auth.APIKeys))
	}
	if accepts, _ := c.AcceptsEveryHost(); !accepts && len(c.Hosts) == 0 && len(c.Limit.TrustedProxies) > 0 {
		warnings = append(warnings, fmt.Sprintf("trusted_proxies is set, but hosts is empty, and listen.public is %s: the daemon refuses every request that "+
			"a proxy forwards with a name in Host (421 wrong_host); list the names that clients use in hosts", c.Listen.Public))
	}
	warn("hooks.publish", c.PublishHook, "publishes")
	warn("hooks.authorize", c.AuthorizeHook.Config, "requests to subscribe")
	return warnings
}

// contradictions checks settings that are valid one by one.
func contradictions(c *Config) mistakes {
	var m mistakes
	t := &c.Transport
	m.check(c.Broker.HistoryBytes >= c.MessageBytes, "history.bytes", "message.bytes",
		"is %s, less than message.bytes (%s): raise it, or one message may exceed the whole history",
		formatSize(c.Broker.HistoryBytes), formatSize(c.MessageBytes))
	m.check(c.mostBudget() >= c.Broker.HistoryBytes, "memory.budget", "history.bytes",
		"is %s, less than history.bytes (%s): raise it, or one topic may exceed it", formatSize(c.mostBudget()), formatSize(c.Broker.HistoryBytes))
	m.check(c.Store.Dir == "" || c.Store.Bytes <= 0 || c.Store.Bytes/4 >= c.Broker.HistoryBytes, "store.bytes", "history.bytes",
		"is %s, less than four times history.bytes (%s): raise it, or lower history.bytes, because all histories together may take a quarter of store.bytes",
		formatSize(c.Store.Bytes), formatSize(c.Broker.HistoryBytes))
	checkListeners(&m, c)
	for key, address := range map[string]string{"listen.public": c.Listen.Public, "listen.admin": c.Listen.Admin} {
		m.check(!c.Listen.ReusePort || !strings.HasPrefix(address, unixPrefix), key, "listen.reuseport",
			"is a Unix socket, which two daemons cannot share: set listen.reuseport to false, or listen on host:port")
	}
	m.check(t.WriteTimeout > t.MaxOutputDelay, "poll.write_timeout", "poll.max_output_delay",
		"is %v, not more than poll.max_output_delay (%v): raise it, or the daemon cuts answers off before their end", t.WriteTimeout, t.MaxOutputDelay)
	if _, err := c.Admin.Key(); err != nil {
		m.add(err)
	}
	checkTLS(&m, c.TLS, c.ServesTLS())
	checkACME(&m, c)
	m.check(c.Auth.CertificateMaxAge == 0 || c.TLS.ClientCA != "", "tls.client_max_age", "tls.client_ca",
		"is set, but clients cannot show certificates: name their authorities in tls.client_ca, or omit tls.client_max_age")
	m.check(c.Auth.Certificates == "" || c.TLS.ClientCA != "", "auth.certificates", "tls.client_ca",
		"is set, but clients cannot show certificates: name their authorities in tls.client_ca")
	checkAuth(&m, c.Auth)
	checkRules(&m, c)
	checkHook(&m, "hooks.publish", c.PublishHook)
	checkHook(&m, "hooks.authorize", c.AuthorizeHook.Config)
	checkHook(&m, "hooks.events", c.EventsHook.Config)
	checkLimits(&m, c)
	checkRates(&m, &c.Limit)
	return m
}

// mostBudget is memory.budget, or its highest value if the daemon chooses it.
func (c *Config) mostBudget() int {
	return cmp.Or(c.Broker.MemoryBudget, memory.DefaultBudget)
}

// checkListeners refuses two listeners on one address, and addresses that other machines
// reach without what they need there. A loopback address does not prove safety, because a
// proxy may forward to it, but a missing one is the most common mistake.
func checkListeners(m *mistakes, c *Config) {
	listeners := []struct{ key, address string }{
		{"listen.public", c.Listen.Public}, {"listen.admin", c.Listen.Admin}, {"listen.tcp", c.Listen.TCP}, {"listen.acme", c.Listen.ACME},
	}
	for i, l := range listeners {
		_, port, err := net.SplitHostPort(l.address)
		for _, other := range listeners[:i] {
			m.check(err != nil || port == "0" || l.address != other.address, l.key, other.key,
				"is %q, which is also %s: choose another port", l.address, other.key)
		}
		if why := c.unsafe(l.key); why != "" && isAddress(l.address) && !isLoopback(l.address) {
			m.check(false, l.key, "", "is %q, which other machines may reach, %s", l.address, why)
		}
	}
}

// unsafe returns why a listener must not be reached by other machines, and what to do about
// it; "": it may be.
func (c *Config) unsafe(listener string) string {
	const everyone = "set --insecure (insecure: true) to serve everyone who can connect"
	switch {
	case c.Insecure, listener == "listen.acme":
		return ""
	case listener == "listen.admin":
		if c.Plaintext {
			return ""
		}
		return "and everyone could read metrics and profiles there, without TLS. Listen on 127.0.0.1 or a Unix socket, " +
			"or set --plaintext (plaintext: true) if only operators reach the address, or " + everyone
	case !c.Auth.On():
		return "and no authorisation is configured: anyone could publish and subscribe to everything. " +
			"Listen on 127.0.0.1, or configure authorisation (such as auth.keys), or " + everyone
	case !c.ServesTLS() && !c.Plaintext:
		return "and there is no TLS: anyone on the network path could read tokens and messages. Set tls.cert and tls.key, or tls.acme.domains, " +
			"or set --plaintext (plaintext: true) if TLS ends at a proxy in front of the daemon"
	}
	return ""
}

// WhoMay says in one sentence who may do what.
func (c Config) WhoMay() string {
	switch {
	case c.Auth.On():
	case c.Insecure:
		return "serving every client that can connect: no authorisation is configured, and --insecure permits this"
	default:
		return "open to everyone on this machine: no authorisation is configured, so only loopback is served"
	}
	var proofs []string
	add := func(format string, of ...string) {
		if text := strings.Join(of, ", "); text != "" {
			proofs = append(proofs, fmt.Sprintf(format, text))
		}
	}
	add("tokens of the keys in %s", c.Auth.Keys...)
	add("tokens of the keys at %s", c.Auth.JWKS)
	add("API keys in %s", c.Auth.APIKeys)
	if c.Auth.Certificates != "" {
		add("certificates of %s", c.TLS.ClientCA)
	}
	text := "clients without credentials may do nothing"
	if c.Auth.Anonymous != "" {
		rights, _ := auth.ParseRights([]byte(c.Auth.Anonymous), "") // it is valid
		text = "clients without credentials " + rights.String()
	}
	if len(proofs) > 0 {
		text = "clients have the rights of their " + enumerate(proofs, "or") + "; " + text
	}
	if !c.ServesTLS() && !isLocal(c.Listen.Public) {
		text += "; connections are in clear text"
	}
	return text
}

// checkTLS refuses a certificate without its key, a key without its certificate, and
// files that are not a pair.
func checkTLS(m *mistakes, t TLS, isOn bool) {
	const orNone = "or omit both to serve without TLS"
	m.check(t.Cert == "" || t.Key != "", "tls.cert", "", "is %q, but tls.key is missing: name the file of its private key, %s", t.Cert, orNone)
	m.check(t.Key == "" || t.Cert != "", "tls.key", "", "is %q, but tls.cert is missing: name the file of its certificate, %s", t.Key, orNone)
	m.check(t.ClientCA == "" || isOn, "tls.client_ca", "", "is %q, but there is no TLS: set tls.cert and tls.key, or omit it", t.ClientCA)
	if t.Cert != "" && t.Key != "" {
		if _, err := t.Load(); err != nil {
			m.add(err)
		}
	}
	if _, err := t.LoadClientCA(); err != nil {
		m.add(err)
	}
}

// checkACME refuses ACME beside files, or without what it needs.
func checkACME(m *mistakes, c *Config) {
	a := &c.ACME
	if !a.On() {
		m.check(a.Storage == "" && !a.Agree && a.Email == "" && c.Listen.ACME == "", "tls.acme", "", "has settings, but no names: set tls.acme.domains, or omit tls.acme and listen.acme")
		return
	}
	m.check(!c.TLS.On(), "tls.acme.domains", "tls.cert", "is set together with tls.cert: omit one of them")
	m.check(!strings.HasPrefix(c.Listen.Public, unixPrefix), "tls.acme.domains", "listen.public",
		"is set, but listen.public is a Unix socket, which the authority cannot reach: listen on host:port, or let the proxy get the certificates")
	m.check(a.Storage != "", "tls.acme.storage", "tls.acme.domains", "is missing: name a folder for the private keys, such as /var/lib/pubsubd/acme")
	m.check(a.Agree, "tls.acme.agree", "tls.acme.domains", "is false: read the terms of service of %s, and set it to true if you agree", a.Directory)
}

// checkRules checks rules whose settings are valid one by one.
func checkRules(m *mistakes, c *Config) {
	n := len(c.Broker.Rules)
	m.check(n <= maxRules, rulesKey, "", "holds %d rules: want at most %d; a pattern may match many topics", n, maxRules)
	names := make(map[string]string) // by pattern
	for _, rule := range c.Broker.Rules {
		at := rulesKey + "." + rule.Name
		switch other, double := names[rule.Pattern]; {
		case !isRuleName(rule.Name):
			m.check(false, at, "", "is not a rule's name: want %s", ruleNameForm)
		case rule.Pattern == "":
			m.check(false, at+".pattern", "", "is missing: name the topics that the rule applies to, such as pattern: prices.>")
		case double:
			m.check(false, at+".pattern", "", "is %q, which is also the pattern of rule %s: put both into one rule", rule.Pattern, other)
		default:
			names[rule.Pattern] = rule.Name
		}
		m.check(rule.HistoryBytes <= 0 || rule.HistoryBytes >= c.MessageBytes, at+".history.bytes", "",
			"is %s, less than message.bytes (%s): raise it, or one message may exceed the whole history",
			formatSize(rule.HistoryBytes), formatSize(c.MessageBytes))
		m.check(rule.HistoryBytes <= c.mostBudget(), at+".history.bytes", "",
			"is %s, more than memory.budget (%s): lower it, or raise memory.budget", formatSize(rule.HistoryBytes), formatSize(c.mostBudget()))
		checkEphemeral(m, at, &rule)
		m.check(rule.Keep <= 0 || rule.Slow == broker.DropOldest, at+".keep", "",
			"is %d, but applies only with slow: %[2]s: set slow: %[2]s, or omit keep", rule.Keep, broker.DropOldest)
		m.check(!rule.Presence || !wire.ReservedTopic(rule.Pattern), at+".presence", "",
			"is true, but the pattern %s matches only the daemon's own topics, which have no presence: omit presence", rule.Pattern)
		m.check(rule.PresenceGrace <= 0 || rule.Presence, at+".presence_grace", "",
			"is %v, but applies only with presence: true: set it, or omit presence_grace", rule.PresenceGrace)
	}
}

// checkEphemeral refuses settings of an ephemeral rule that need a history.
func checkEphemeral(m *mistakes, at string, rule *broker.Rule) {
	if !rule.Ephemeral {
		return
	}
	m.check(rule.HistoryMessages == 0 && rule.HistoryBytes == 0 && rule.HistoryAge == 0, at+".ephemeral", "",
		"is true, but the rule also sets history, and ephemeral topics have none: omit history, or omit ephemeral")
	m.check(rule.Slow != broker.DropOldest && rule.Slow != broker.Conflate, at+".slow", "",
		"is %s, which needs a history, but ephemeral is true: omit slow, so that a slow subscriber gets a gap, or set slow: %s", rule.Slow, broker.Disconnect)
	m.check(!wire.ReservedTopic(rule.Pattern), at+".ephemeral", "",
		"is true, but the pattern %s matches only the daemon's own topics, which are never ephemeral: omit ephemeral", rule.Pattern)
}

// checkLimits refuses limits that have no effect, because another limit is lower.
func checkLimits(m *mistakes, c *Config) {
	l, each, all := &c.Limit, c.Session.Subscriptions, c.Broker.MaxSubscriptions
	m.check(l.Connections <= 0 || l.AddressConnections <= l.Connections, "limits.address_connections", "limits.connections",
		"is %d, more than limits.connections (%d): lower it, or one address may take them all", l.AddressConnections, l.Connections)
	m.check(l.AddressCalls-l.Calls <= l.WaitingCalls, "limits.address_calls", "limits.calls",
		"is %d, more than limits.calls and limits.waiting_calls together (%d and %d): lower it, or one address may take them all",
		l.AddressCalls, l.Calls, l.WaitingCalls)
	m.check(each <= all, "limits.subscriptions", "limits.all_subscriptions",
		"is %d, more than limits.all_subscriptions (%d): lower it, or one session may take them all", each, all)
	m.check(l.Wait < c.Transport.WriteTimeout, "limits.wait", "poll.write_timeout",
		"is %v, not less than poll.write_timeout (%v): lower it, or a request that waits that long gets no answer", l.Wait, c.Transport.WriteTimeout)
}

// checkHook refuses a hook without a secret.
func checkHook(m *mistakes, key string, h hook.Config) {
	m.check(h.URL == "" || h.Secret != "", key+".url", key+".secret", "is %q, but %s.secret is missing: "+
		"set a key that the application also knows, such as the output of `openssl rand -base64 32`", h.URL, key)
}

// checkRates refuses a rate of some clients that is above the rate of all.
func checkRates(m *mistakes, l *limit.Config) {
	compare := func(key string, r limit.Rate, kind limit.Kind, advice string) {
		all, with := l.Rates[kind][limit.All], rateKey(kind, limit.All)
		m.check(all.PerSecond <= 0 || r.PerSecond <= all.PerSecond, key, with, "is %s, more than %s (%s): lower it, or %s", r, with, all, advice)
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
