package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"

	"github.com/pubsubd/pubsubd/internal/memory"
)

// Validate returns every reason why the daemon must not start with c, joined, or
// nil: fields out of their bounds, settings that contradict each other, a
// certificate that cannot be used, as its files are now, and listeners that other machines can reach though nothing keeps anyone out.
func (c Config) Validate() error {
	return join(append(outOfBounds(&c), contradictions(&c)...))
}

func join(wrong []*Error) error {
	errs := make([]error, len(wrong))
	for i, e := range wrong {
		errs[i] = e
	}
	return errors.Join(errs...)
}

func outOfBounds(c *Config) []*Error {
	var wrong []*Error
	for _, s := range allSettings(c) {
		if err := s.field.check(); err != nil {
			wrong = append(wrong, &Error{Key: s.key, Reason: fmt.Sprintf("is %q: %s", shownRefused(s.field, s.field.text()), err)})
		}
	}
	return wrong
}

// contradictions looks at settings that are well by themselves.
func contradictions(c *Config) []*Error {
	var wrong []*Error
	if c.Broker.HistoryBytes < c.MessageBytes {
		wrong = append(wrong, &Error{Key: "history.bytes", with: "message.bytes", Reason: fmt.Sprintf(
			"is %s, less than message.bytes (%s): raise it, or one message may exceed the whole history",
			formatSize(c.Broker.HistoryBytes), formatSize(c.MessageBytes))})
	}
	if c.mostBudget() < c.Broker.HistoryBytes {
		wrong = append(wrong, &Error{Key: "memory.budget", with: "history.bytes", Reason: fmt.Sprintf(
			"is %s, less than history.bytes (%s): raise it, or one topic may exceed it",
			formatSize(c.mostBudget()), formatSize(c.Broker.HistoryBytes))})
	}
	wrong = append(wrong, sharedAddresses(c)...)
	if c.Transport.WriteTimeout <= c.Transport.MaxOutputDelay {
		wrong = append(wrong, &Error{Key: "poll.write_timeout", with: "poll.max_output_delay", Reason: fmt.Sprintf(
			"is %v, not more than poll.max_output_delay (%v): raise it, or answers would be cut off before their end",
			c.Transport.WriteTimeout, c.Transport.MaxOutputDelay)})
	}
	wrong = append(wrong, wrongTLS(c)...)
	wrong = append(wrong, wrongRules(c)...)
	wrong = append(wrong, wrongHook(c)...)
	wrong = append(wrong, wrongLimits(c)...)
	if c.Insecure {
		return wrong
	}
	return append(wrong, exposed(c)...)
}

// mostBudget is memory.budget, or what it is at most where the daemon chooses.
func (c *Config) mostBudget() int {
	return cmp.Or(c.Broker.MemoryBudget, memory.DefaultBudget)
}

// sharedAddresses refuses one address for two listeners.
func sharedAddresses(c *Config) []*Error {
	var wrong []*Error
	refuse := func(key, address, with, other string) {
		if _, port, err := net.SplitHostPort(address); err == nil && port != "0" && address == other {
			wrong = append(wrong, &Error{Key: key, with: with, Reason: fmt.Sprintf("is %q, which is %s too: choose another port", address, with)})
		}
	}
	refuse("listen.admin", c.Listen.Admin, "listen.public", c.Listen.Public)
	refuse("listen.tcp", c.Listen.TCP, "listen.public", c.Listen.Public)
	refuse("listen.tcp", c.Listen.TCP, "listen.admin", c.Listen.Admin)
	return wrong
}

// exposed refuses what other machines can reach. It is no proof of being closed
// (a proxy may forward anything), but the mistake that is made most.
func exposed(c *Config) []*Error {
	var wrong []*Error
	refuse := func(key, address, whatAnyoneCould string) {
		if isAddress(address) && !isLoopback(address) {
			wrong = append(wrong, &Error{Key: key, Reason: fmt.Sprintf(
				"is %q, which other machines may reach, and no authorisation is configured: anyone could %s. "+
					"Listen on 127.0.0.1, or say --insecure (insecure: true) to serve everyone who can connect", address, whatAnyoneCould)})
		}
	}
	refuse("listen.public", c.Listen.Public, "publish and subscribe to everything")
	refuse("listen.tcp", c.Listen.TCP, "publish and subscribe to everything")
	refuse("listen.admin", c.Listen.Admin, "read metrics and profiles")
	return wrong
}

// Doubts returns what is allowed in c and may not be meant, each with what to do about
// it.
func (c Config) Doubts() []string {
	var doubts []string
	if h := &c.PublishHook; h.URL != "" && h.Calls >= c.Limit.Calls {
		doubts = append(doubts, fmt.Sprintf("hooks.publish.calls is %d, not less than limits.calls (%d): "+
			"publishes that wait for a slow application may take every place; lower it, or raise limits.calls, to leave some to other requests",
			h.Calls, c.Limit.Calls))
	}
	return doubts
}
