package broker

import (
	"cmp"
	"time"
)

// A Rule says of the topics that a pattern stands for what they retain and what a
// slow subscriber of them gets. Of several rules that match a topic the most
// specific counts, wholly: token by token, a name before '*' before '>'.
type Rule struct {
	Name    string // in the configuration; of no other meaning
	Pattern string // see wire.CheckPattern

	// HistoryMessages, HistoryBytes and HistoryAge are as in Config, whose values
	// they default to.
	HistoryMessages int
	HistoryBytes    int
	HistoryAge      time.Duration

	// Slow is what a subscriber gets that fell behind. Default Resume.
	Slow Slow

	// Keep is how many of the newest messages DropOldest leaves. Default 16.
	Keep int
}

// Slow is a policy for subscribers that fell behind: whose session's queue a
// message did not fit. It is about what they have not been sent.
type Slow string

// The policies.
const (
	Resume     Slow = "resume"      // all of it, from history; a gap only where that has passed
	DropOldest Slow = "drop_oldest" // the newest few, after one gap
	Conflate   Slow = "conflate"    // the newest message per key, with gaps between
	Disconnect Slow = "disconnect"  // nothing: the session ends
)

// Slows returns every policy, the default first.
func Slows() []Slow { return []Slow{Resume, DropOldest, Conflate, Disconnect} }

// DefaultKeep is Rule.Keep's default.
const DefaultKeep = 16

// A TopicRule is all that the settings say of a topic. It is immutable.
type TopicRule struct {
	Rule      // the most specific that matches the topic, completed by the general settings
	Hook bool // the application is asked about messages to the topic

	in *rules
}

// rules are the rules in force.
type rules struct {
	specific tree[*[2]TopicRule] // without a hook, and with one
	general  [2]TopicRule
	hook     tree[bool]
}

func newRules(cfg Config) *rules {
	r := &rules{}
	r.general = r.complete(Rule{}, cfg)
	for _, rule := range cfg.Rules {
		at, _ := r.specific.at(rule.Pattern, true)
		both := r.complete(rule, cfg)
		at.value = &both
	}
	for _, pattern := range cfg.HookTopics {
		at, _ := r.hook.at(pattern, true)
		at.value = true
	}
	return r
}

// complete gives a rule what it leaves out.
func (r *rules) complete(rule Rule, cfg Config) [2]TopicRule {
	rule.HistoryMessages = cmp.Or(rule.HistoryMessages, cfg.HistoryMessages)
	rule.HistoryBytes = cmp.Or(rule.HistoryBytes, cfg.HistoryBytes)
	rule.HistoryAge = cmp.Or(rule.HistoryAge, cfg.HistoryAge)
	rule.Slow = cmp.Or(rule.Slow, Resume)
	rule.Keep = cmp.Or(rule.Keep, DefaultKeep)
	return [2]TopicRule{{Rule: rule, in: r}, {Rule: rule, Hook: true, in: r}}
}

// of resolves the rule for a topic: the most specific that matches it.
func (r *rules) of(topic string) *TopicRule {
	best := &r.general
	r.specific.matching(topic, func(rule *[2]TopicRule) bool {
		best = rule
		return false
	})
	asks := 0
	r.hook.matching(topic, func(bool) bool {
		asks = 1
		return false
	})
	return &best[asks]
}

// A Route leads a publish to its topic, which may not exist yet, and says by which rule
// the topic goes. So the rule is resolved once, and each check on the way of the publish
// reads it. A Route is good for one publish.
type Route struct {
	topic *topic     // nil: it does not exist
	rule  *TopicRule // when the route was made
}

// Route returns the route to a topic.
func (b *Broker) Route(topic string) Route {
	if t := b.find(topic); t != nil {
		return Route{t, t.rule.Load()}
	}
	return Route{nil, b.force.Load().rules.of(topic)}
}

// Exists reports whether the topic exists.
func (r Route) Exists() bool { return r.topic != nil }

// Rule returns the topic's rule.
func (r Route) Rule() *TopicRule { return r.rule }
