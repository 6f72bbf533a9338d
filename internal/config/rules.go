package config

import (
	"slices"
	"strings"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// rulesKey is the section of the rules for topics, by their names:
//
//	topics:
//	  prices:
//	    pattern: prices.>
//	    history: {age: 5s}
//
// As a variable, the last line is PUBSUBD_TOPICS_PRICES_HISTORY_AGE=5s; as a flag,
// --topics prices.history.age=5s.
const rulesKey = "topics"

// rulesFlag is the flag that sets one member of a rule each time it is given.
const rulesFlag = rulesKey

// maxRules bounds the rules, and maxRuleName a rule's name in bytes.
const (
	maxRules    = 1000
	maxRuleName = 32
)

// ruleNameForm describes the name of a rule. A variable has it in capitals, with
// underscores for dashes, so the name itself has no underscores.
const ruleNameForm = "lower-case letters, digits and single dashes between them, a letter first, at most 32"

// isRuleName reports whether s has the form that ruleNameForm describes.
func isRuleName(s string) bool {
	const letters, digits = "abcdefghijklmnopqrstuvwxyz", "0123456789"
	return s != "" && len(s) <= maxRuleName && strings.Trim(s, letters+digits+"-") == "" &&
		strings.Contains(letters, s[:1]) && !strings.HasSuffix(s, "-") && !strings.Contains(s, "--")
}

// A rule is one section below topics, for the broker and for the limiter.
type rule struct {
	broker.Rule
	Rate limit.Rate
}

// members returns the names of a rule's settings: pattern, history.age.
func members() []string {
	var names []string
	for _, s := range ruleSettings(new(broker.Rule), new(limit.Rate)) {
		names = append(names, strings.TrimPrefix(s.key, rulesKey+".."))
	}
	return names
}

// splitRuleKey splits topics.prices.history.age into the rule's name and the
// member. ok is false for a key that is not below topics; the member may be empty.
func splitRuleKey(key string) (name, member string, ok bool) {
	rest, ok := strings.CutPrefix(key, rulesKey+".")
	name, member, _ = strings.Cut(rest, ".")
	return name, member, ok
}

// ruleKeyOf returns the key that a variable sets: topics.a-b.history.age for
// PUBSUBD_TOPICS_A_B_HISTORY_AGE. The variable ends with the member; no member ends
// as another does, so it has only one meaning.
func ruleKeyOf(env string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(env, envPrefix+strings.ToUpper(rulesKey)+"_")
	for _, member := range members() {
		name, isMember := strings.CutSuffix(rest, "_"+strings.ToUpper(envNames.Replace(member)))
		if ok && isMember {
			return rulesKey + "." + strings.ReplaceAll(strings.ToLower(name), "_", "-") + "." + member, rest == strings.ToUpper(rest)
		}
	}
	return "", false
}

// rule returns the rule of that name. It creates the rule when a source first has it.
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

// ruleSetting returns the setting of a key below topics. It creates the rule if the
// key is valid.
func (r *reading) ruleSetting(key, where string) (setting, bool) {
	name, member, ok := splitRuleKey(key)
	if !ok || !isRuleName(name) || !slices.Contains(members(), member) {
		return setting{}, false
	}
	rule := r.rule(name, where)
	rows := ruleSettings(&rule.Rule, &rule.Rate)
	return rows[slices.IndexFunc(rows, func(s setting) bool { return s.key == key })], true
}

// readRuleFlag reads one --topics name.member=value.
func (r *reading) readRuleFlag(text string) {
	key, value, isPair := strings.Cut(text, "=")
	where := "flag --" + rulesFlag + " " + key
	s, ok := r.ruleSetting(rulesKey+"."+key, where)
	switch {
	case !isPair:
		r.fail("", "flag --"+rulesFlag, "is %q: want name.member=value, such as prices.pattern=prices.>", text)
	case !ok:
		name, member, _ := splitRuleKey(rulesKey + "." + key)
		r.fail("", where, "is not known: %s", wrongMember(name, member))
	default:
		r.set(s, value, where)
	}
}

// wrongMember says how to correct a rule's name and member.
func wrongMember(name, member string) string {
	switch {
	case !isRuleName(name):
		return "the name of a rule is " + ruleNameForm
	case wire.IsPattern(member):
		return "choose a name for the rule and write the pattern below it: " + name + ": {pattern: " + name + "." + member + "}"
	}
	return "a rule has " + enumerate(members(), "and")
}
