package broker

import (
	"cmp"
	"time"
)

// A Rule sets the history of the topics that match a pattern, their policy for slow
// subscribers, and whether they tell who published. If several rules match a topic, only the most specific one counts: segment
// by segment, a name is more specific than '*', and '*' than '>'.
type Rule struct {
	Name    string // in the configuration
	Pattern string // see wire.CheckPattern

	// HistoryMessages, HistoryBytes and HistoryAge are as in Config, whose values
	// they default to.
	HistoryMessages int
	HistoryBytes    int
	HistoryAge      time.Duration

	// Slow is the policy for slow subscribers. Default Resume.
	Slow Slow

	// Keep is how many of the newest messages DropOldest keeps. Default 16.
	Keep int

	// Ephemeral makes the topics ephemeral. Only the rules of the first settings decide, so that
	// no topic changes its partition. Default false.
	//
	// No log has an ephemeral topic. It numbers its messages, and holds them only until they
	// were offered to all subscribers. While a subscriber has a rate, it holds them as other
	// topics do.
	Ephemeral bool

	// Identity adds to each message the verified subject of its publisher, and the public
	// claims of its token. Messages that are held already stay as they are. Default false.
	Identity bool

	// Presence makes the daemon track the members of these topics and publish changes.
	// PresenceGrace is how long a member stays one without a connection. Defaults false, 5 s.
	Presence      bool
	PresenceGrace time.Duration
}

// Slow is a policy for slow subscribers: a message did not fit the queue of their session.
// It decides which of the messages that were not sent they still get.
type Slow string

// The policies.
const (
	Resume     Slow = "resume"      // all that history holds
	DropOldest Slow = "drop_oldest" // the newest few, after one gap
	Conflate   Slow = "conflate"    // the newest message of each key, with gaps between
	Disconnect Slow = "disconnect"  // none: the session ends
)

// Slows returns every policy, the default first.
func Slows() []Slow { return []Slow{Resume, DropOldest, Conflate, Disconnect} }

// DefaultKeep is Rule.Keep's default, and DefaultPresenceGrace that of PresenceGrace.
const (
	DefaultKeep          = 16
	DefaultPresenceGrace = 5 * time.Second
)

// A TopicRule has all settings of one topic. It is immutable.
type TopicRule struct {
	Rule         // the most specific one that matches, completed from Config
	Hook    bool // the application is asked about messages to the topic
	Watched bool // Occupancies has the topic's first and last subscribers

	in *settings
}

// settings are a Config, completed, with its rules.
type settings struct {
	Config
	specific      tree[variants]
	general       variants
	hook, watched tree[bool]
}

func newSettings(cfg Config) *settings {
	f := &settings{Config: cfg.WithDefaults()}
	f.general = f.complete(Rule{})
	for _, rule := range f.Rules {
		at, _ := f.specific.at(rule.Pattern, true)
		at.value = new(f.complete(rule))
	}
	for asked, patterns := range map[*tree[bool]][]string{&f.hook: f.HookTopics, &f.watched: f.WatchedTopics} {
		for _, pattern := range patterns {
			at, _ := asked.at(pattern, true)
			at.value = new(true)
		}
	}
	return f
}

// variants are a rule without and with each of Hook and Watched: the sum of the two indexes
// selects one.
type variants [4]TopicRule

const (
	withHook = 1 << iota
	withWatched
)

// complete fills in what a rule leaves out.
func (f *settings) complete(rule Rule) (all variants) {
	rule.HistoryMessages = cmp.Or(rule.HistoryMessages, f.HistoryMessages)
	rule.HistoryBytes = cmp.Or(rule.HistoryBytes, f.HistoryBytes)
	rule.HistoryAge = cmp.Or(rule.HistoryAge, f.HistoryAge)
	rule.Slow = cmp.Or(rule.Slow, Resume)
	rule.Keep = cmp.Or(rule.Keep, DefaultKeep)
	rule.PresenceGrace = cmp.Or(rule.PresenceGrace, DefaultPresenceGrace)
	for i := range all {
		all[i] = TopicRule{Rule: rule, Hook: i&withHook > 0, Watched: i&withWatched > 0, in: f}
	}
	return all
}

// of resolves the rule for a topic: the most specific that matches it.
func (f *settings) of(topic string) *TopicRule {
	best, variant := &f.general, 0
	for rule := range f.specific.matching(topic) {
		best = rule
		break
	}
	for range f.hook.matching(topic) {
		variant |= withHook
		break
	}
	for range f.watched.matching(topic) {
		variant |= withWatched
		break
	}
	return &best[variant]
}
