package config

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// rulesKey is the section that holds the rules for topics by their names:
//
//	topics:
//	  prices:
//	    pattern: prices.>
//	    history: {age: 5s}
//
// As a variable that is PUBSUBD_TOPICS_PRICES_HISTORY_AGE, as a flag
// --topics prices.history.age=5s.
const rulesKey = "topics"

// rulesFlag is the flag that sets a member of a rule each time it is given.
const rulesFlag = rulesKey

// maxRules bounds the rules: each is looked at for each new topic.
const maxRules = 1000

// maxRuleName bounds a rule's name, in bytes.
const maxRuleName = 32

// ruleNameMay says what a rule's name may be. A variable has it in capitals with
// underscores for dashes, which is why it has none itself.
const ruleNameMay = "lower-case letters, digits and single dashes between them, a letter first, at most 32"

// A rule is what was said of a pattern's topics, to the broker and to the limiter.
type rule struct {
	broker.Rule
	Rate limit.Rate
}

// ruleSettings returns the table of a rule's settings, bound to the fields of r and to
// its rate.
func ruleSettings(r *broker.Rule, often *limit.Rate) []setting {
	const ms = time.Millisecond
	row := func(member string, f field, doc string) setting {
		return setting{rulesKey + "." + r.Name + "." + member, live(optional(f)), doc}
	}
	return []setting{
		row("pattern", pattern(&r.Pattern), "the topics that the rule is for; required, and no two rules may have the same"),
		row("history.messages", count(&r.HistoryMessages, 0, math.MaxInt), "messages that each of them retains; else history.messages"),
		row("history.bytes", size(&r.HistoryBytes, 0, math.MaxInt), "bytes that each of them retains, at least message.bytes; else history.bytes"),
		row("history.age", duration(&r.HistoryAge, 0, ms), "how long each of them retains a message; else history.age"),
		row("slow", choice(&r.Slow, broker.Slows()[0], broker.Slows()[1:]...), "what a subscriber gets that fell behind: all that is held (resume, if nothing is said), the newest few, the newest of each key, or the end of its session"),
		row("keep", count(&r.Keep, 0, math.MaxInt), fmt.Sprintf("how many of the newest messages drop_oldest leaves, and only with it; else %d", broker.DefaultKeep)),
		row("rate", rate(often), "how often may be published to all of them together, by all clients; else as often as rates.publishes allows"),
	}
}

// pattern is a topic's name or a pattern.
func pattern(to *string) field {
	wrong := func(s string) string {
		if err := wire.CheckPattern(s); err != nil {
			return err.Error()
		}
		return ""
	}
	return fieldOf[string]{
		to: to, name: "pattern",
		may:    "a topic's name, or a pattern, in which * stands for one token and a last > for the rest: chat.* or prices.>",
		parse:  asIs,
		format: func(s string) string { return s },
		valid:  func(s string) bool { return wrong(s) == "" },
		wrong:  wrong,
	}
}

// allSettings returns the table of c's settings and those of its rules.
func allSettings(c *Config) []setting {
	all := settings(c)
	for i := range c.Broker.Rules {
		r := &c.Broker.Rules[i]
		all = append(all, ruleSettings(r, rateOf(c, r.Name))...)
	}
	return all
}

// rateOf returns the rate of a rule, which has none if c was made by hand.
func rateOf(c *Config, rule string) *limit.Rate {
	for i := range c.Limit.Rules {
		if r := &c.Limit.Rules[i]; r.Name == rule {
			return &r.Rate
		}
	}
	return new(limit.Rate)
}

// members returns the names of what a rule has.
func members() []string {
	var names []string
	for _, s := range ruleSettings(new(broker.Rule), new(limit.Rate)) {
		names = append(names, strings.TrimPrefix(s.key, rulesKey+".."))
	}
	return names
}

// splitRuleKey takes topics.prices.history.age apart. ok is false for anything that
// is not below topics; the member may be empty.
func splitRuleKey(key string) (name, member string, ok bool) {
	rest, ok := strings.CutPrefix(key, rulesKey+".")
	name, member, _ = strings.Cut(rest, ".")
	return name, member, ok
}

// ruleKeyOf returns the key that a variable stands for: topics.a-b.history.age for
// PUBSUBD_TOPICS_A_B_HISTORY_AGE. A member is the end of it; no member's name ends
// as another does, so there is one way to read it.
func ruleKeyOf(env string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(env, envPrefix+strings.ToUpper(rulesKey)+"_")
	for _, member := range members() {
		name, isMember := strings.CutSuffix(rest, "_"+strings.ToUpper(envNames.Replace(member)))
		if ok && isMember {
			return rulesKey + "." + ruleNames.Replace(strings.ToLower(name)) + "." + member, rest == strings.ToUpper(rest)
		}
	}
	return "", false
}

var ruleNames = strings.NewReplacer("_", "-")

// isRuleName reports whether s is as ruleNameMay says.
func isRuleName(s string) bool {
	const letters, digits = "abcdefghijklmnopqrstuvwxyz", "0123456789"
	return s != "" && len(s) <= maxRuleName && strings.Trim(s, letters+digits+"-") == "" &&
		strings.Contains(letters, s[:1]) && !strings.HasSuffix(s, "-") && !strings.Contains(s, "--")
}

// rule returns the rule of that name, which begins to be where it is first named.
func (r *reading) rule(name, where string) *rule {
	if r.rules[name] == nil {
		r.rules[name] = &rule{Rule: broker.Rule{Name: name}}
		r.origin[rulesKey+"."+name] = where
		if len(r.rules) == maxRules+1 {
			r.origin[rulesKey] = where
		}
	}
	return r.rules[name]
}

// ruleSetting returns the setting of a key below topics, whose rule it makes if
// the key is good.
func (r *reading) ruleSetting(key, where string) (setting, bool) {
	name, member, ok := splitRuleKey(key)
	if !ok || !isRuleName(name) || !slices.Contains(members(), member) {
		return setting{}, false
	}
	rule := r.rule(name, where)
	for _, s := range ruleSettings(&rule.Rule, &rule.Rate) {
		if s.key == key {
			return s, true
		}
	}
	return setting{}, false
}

// putRules puts the rules that were read into c, by name. The limiter gets those
// without a rate, too: one of them may be the most specific.
func (r *reading) putRules(c *Config) {
	for _, name := range sortedKeys(r.rules) {
		rule := r.rules[name]
		c.Broker.Rules = append(c.Broker.Rules, rule.Rule)
		c.Limit.Rules = append(c.Limit.Rules, limit.Rule{Name: name, Pattern: rule.Pattern, Rate: rule.Rate})
	}
}

// readRuleFlag takes one --topics name.member=value.
func (r *reading) readRuleFlag(text string) {
	const where = "flag --" + rulesFlag
	key, value, isPair := strings.Cut(text, "=")
	s, ok := r.ruleSetting(rulesKey+"."+key, where+" "+key)
	switch {
	case !isPair:
		r.fail("", where, "is %q: want name.member=value, such as prices.pattern=prices.>", text)
	case !ok:
		name, member, _ := splitRuleKey(rulesKey + "." + key)
		r.fail("", where+" "+key, "is not known: %s", wrongMember(name, member))
	default:
		r.set(s, value, where+" "+key)
	}
}

// wrongMember says what would do in place of a rule's name and member.
func wrongMember(name, member string) string {
	if !isRuleName(name) {
		return fmt.Sprintf("a rule's name is %s", ruleNameMay)
	}
	if wire.IsPattern(member) {
		return "rules go by names of their own, which pattern is below: " + name + ": {pattern: " + name + "." + member + "}"
	}
	return "a rule has " + andList(members()) + didYouMean(member, "", members())
}

// wrongRules looks at rules that are well setting by setting.
func wrongRules(c *Config) []*Error {
	var wrong []*Error
	fail := func(key, reason string, args ...any) {
		wrong = append(wrong, &Error{Key: key, Reason: fmt.Sprintf(reason, args...)})
	}
	if n := len(c.Broker.Rules); n > maxRules {
		fail(rulesKey, "holds %d rules: want at most %d; a pattern may stand for many topics", n, maxRules)
	}
	has := make(map[string]string) // the rule that has a pattern
	for _, rule := range c.Broker.Rules {
		at := rulesKey + "." + rule.Name
		switch other, double := has[rule.Pattern]; {
		case !isRuleName(rule.Name):
			fail(at, "is not a rule's name: want %s", ruleNameMay)
		case rule.Pattern == "":
			fail(at+".pattern", "is missing: say which topics the rule is for, such as pattern: prices.>")
		case double:
			fail(at+".pattern", "is %q, which is the pattern of rule %s too: put both into one rule", rule.Pattern, other)
		default:
			has[rule.Pattern] = rule.Name
		}
		if rule.HistoryBytes > 0 && rule.HistoryBytes < c.MessageBytes {
			fail(at+".history.bytes", "is %s, less than message.bytes (%s): raise it, or one message may exceed the whole history",
				formatSize(rule.HistoryBytes), formatSize(c.MessageBytes))
		}
		if rule.HistoryBytes > c.mostBudget() {
			fail(at+".history.bytes", "is %s, more than memory.budget (%s): lower it, or raise that",
				formatSize(rule.HistoryBytes), formatSize(c.mostBudget()))
		}
		if rule.Keep > 0 && rule.Slow != broker.DropOldest {
			fail(at+".keep", "is %d, but slow is not %s, and only that keeps some: say slow: %[2]s, or leave keep out", rule.Keep, broker.DropOldest)
		}
	}
	return wrong
}
