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

// rules are the rules in force. What a rule leaves out is the general setting.
type rules struct {
	specific tree[*Rule]
	general  Rule
}

func newRules(cfg Config) *rules {
	r := &rules{general: Rule{
		HistoryMessages: cfg.HistoryMessages, HistoryBytes: cfg.HistoryBytes, HistoryAge: cfg.HistoryAge,
		Slow: Resume, Keep: DefaultKeep,
	}}
	for _, rule := range cfg.Rules {
		rule.HistoryMessages = cmp.Or(rule.HistoryMessages, cfg.HistoryMessages)
		rule.HistoryBytes = cmp.Or(rule.HistoryBytes, cfg.HistoryBytes)
		rule.HistoryAge = cmp.Or(rule.HistoryAge, cfg.HistoryAge)
		rule.Slow = cmp.Or(rule.Slow, Resume)
		rule.Keep = cmp.Or(rule.Keep, DefaultKeep)
		at, _ := r.specific.at(rule.Pattern, true)
		at.value = &rule
	}
	return r
}

// of returns the rule for a topic: the most specific that matches it.
func (r *rules) of(topic string) *Rule {
	best := &r.general
	r.specific.matching(topic, func(rule *Rule) bool {
		best = rule
		return false
	})
	return best
}
