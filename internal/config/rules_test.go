package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
)

func TestARuleFromEverySource(t *testing.T) {
	want := []broker.Rule{
		{Name: "chat-rooms", Pattern: "chat.*", Slow: broker.DropOldest, Keep: 3},
		{Name: "prices", Pattern: "prices.>", HistoryMessages: 10, HistoryBytes: 2 << 20, HistoryAge: 5 * time.Second, Slow: broker.Conflate},
	}
	wantRates := []limit.Rule{
		{Name: "chat-rooms", Pattern: "chat.*"},
		{Name: "prices", Pattern: "prices.>", Rate: limit.Rate{PerSecond: 100, Burst: 500}},
	}
	for name, said := range map[string]struct {
		yaml    string
		environ []string
		args    []string
	}{
		"file": {yaml: "topics:\n  prices:\n    pattern: prices.>\n    history: {messages: 10, bytes: 2MiB, age: 5s}\n    slow: conflate\n    rate: 100/s burst 500\n" +
			"  chat-rooms: {pattern: chat.*, slow: drop_oldest, keep: 3}\n"},
		"file, dotted": {yaml: "topics.prices: {pattern: prices.>, history.messages: 10, slow: conflate, rate: 100/s burst 500}\ntopics.prices.history: {bytes: 2MiB, age: 5s}\n" +
			"topics:\n  chat-rooms.pattern: chat.*\n  chat-rooms.slow: drop_oldest\n  chat-rooms.keep: 3\n"},
		"environment": {environ: []string{
			"PUBSUBD_TOPICS_PRICES_PATTERN=prices.>", "PUBSUBD_TOPICS_PRICES_HISTORY_MESSAGES=10", "PUBSUBD_TOPICS_PRICES_HISTORY_BYTES=2MiB",
			"PUBSUBD_TOPICS_PRICES_HISTORY_AGE=5s", "PUBSUBD_TOPICS_PRICES_SLOW=conflate", "PUBSUBD_TOPICS_CHAT_ROOMS_PATTERN=chat.*",
			"PUBSUBD_TOPICS_CHAT_ROOMS_SLOW=drop_oldest", "PUBSUBD_TOPICS_CHAT_ROOMS_KEEP=3", "PUBSUBD_TOPICS_PRICES_RATE=100/s burst 500",
		}},
		"flags": {args: []string{
			"--topics=prices.pattern=prices.>", "--topics", "prices.history.messages=10", "--topics=prices.history.bytes=2MiB", "--topics=prices.history.age=5s",
			"--topics=prices.slow=conflate", "--topics=chat-rooms.pattern=chat.*", "--topics=chat-rooms.slow=drop_oldest", "--topics=chat-rooms.keep=3", "--topics=prices.rate=100/s burst 500",
		}},
		"each over the weaker": {
			yaml:    "topics:\n  prices: {pattern: file.>, history: {messages: 1, bytes: 2MiB, age: 1s}}\n  chat-rooms: {pattern: chat.*, slow: drop_oldest}\n",
			environ: []string{"PUBSUBD_TOPICS_PRICES_PATTERN=environment.>", "PUBSUBD_TOPICS_PRICES_HISTORY_MESSAGES=10", "PUBSUBD_TOPICS_CHAT_ROOMS_KEEP=5", "PUBSUBD_TOPICS_PRICES_RATE=100/s burst 500", "PUBSUBD_TOPICS_CHAT_ROOMS_RATE=1/s"},
			args:    []string{"--topics=prices.pattern=prices.>", "--topics=prices.history.age=5s", "--topics=prices.slow=conflate", "--topics=chat-rooms.keep=4", "--topics=chat-rooms.keep=3", "--topics=chat-rooms.rate=off"},
		},
	} {
		c, err := load(t, said.yaml, said.environ, said.args...)
		require.NoError(t, err, name)
		require.Equal(t, want, c.Broker.Rules, name)
		require.Equal(t, wantRates, c.Limit.Rules, name)
		require.NoError(t, c.Validate(), name)
	}
}

// A rule may have only a pattern: it exempts topics from a wider rule.
func TestARuleMayOnlyHaveAPattern(t *testing.T) {
	c, err := load(t, "topics:\n  all: {pattern: '>', slow: conflate}\n  some: {pattern: '*'}\n", nil)
	require.NoError(t, err)
	require.Equal(t, []broker.Rule{{Name: "all", Pattern: ">", Slow: broker.Conflate}, {Name: "some", Pattern: "*"}}, c.Broker.Rules)
}

func TestRuleNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "prices": true, "a1": true, "a-b-2": true, strings.Repeat("a", maxRuleName): true,
		"pattern": true, "history": true, "x-pattern": true, "history-age": true,
		"": false, "Prices": false, "1a": false, "-a": false, "a-": false, "a--b": false, "a_b": false, "a.b": false, "prüfen": false, "a b": false,
		strings.Repeat("a", maxRuleName+1): false,
	} {
		require.Equal(t, want, isRuleName(name), "%q", name)
	}
}

// The variables of a rule lead to that rule only, and never to a setting outside rules.
func TestVariablesOfRulesAreUnambiguous(t *testing.T) {
	of := make(map[string]string)
	for _, s := range settings(new(Config)) {
		of[s.env()] = s.key
	}
	for _, name := range []string{"a", "a-b", "pattern", "x-pattern", "history", "x-history", "history-age", "age", "keep-slow", "rate", "x-rate", "service", "port"} {
		for _, s := range ruleSettings(&broker.Rule{Name: name}, new(limit.Rate)) {
			require.Empty(t, of[s.env()], "%s and %s", of[s.env()], s.key)
			of[s.env()] = s.key
			key, ok := ruleKeyOf(s.env())
			require.True(t, ok)
			require.Equal(t, s.key, key)
			require.False(t, isKubernetes(s.env(), "tcp://10.0.0.1:80"))
		}
	}
	for _, one := range members() {
		for _, other := range members() {
			require.False(t, one != other && strings.HasSuffix(one, "."+other), "%s could be read as %s of another rule", one, other)
		}
	}
}

func TestRulesAreBounded(t *testing.T) {
	var yaml strings.Builder
	yaml.WriteString("topics:\n")
	for i := range maxRules {
		fmt.Fprintf(&yaml, "  r%d: {pattern: a%d}\n", i, i)
	}
	_, err := load(t, yaml.String(), nil)
	require.NoError(t, err)
	_, err = load(t, yaml.String(), nil, "--topics=more.pattern=b")
	require.EqualError(t, err, "flag --topics more.pattern: topics holds 1001 rules: want at most 1000; a pattern may match many topics")
}

// Validate checks rules of a Config that was not loaded.
func TestValidateRules(t *testing.T) {
	for want, rules := range map[string][]broker.Rule{
		"topics.":                   {{Pattern: "a"}},
		"topics.A":                  {{Name: "A", Pattern: "a"}},
		"topics.a.pattern":          {{Name: "a"}},
		"topics.b.pattern":          {{Name: "a", Pattern: "x.*"}, {Name: "b", Pattern: "x.*"}},
		"topics.a.history.messages": {{Name: "a", Pattern: "a", HistoryMessages: -1}},
		"topics.a.history.bytes":    {{Name: "a", Pattern: "a", HistoryBytes: 1}},
		"topics.a.history.age":      {{Name: "a", Pattern: "a", HistoryAge: 1}},
		"topics.a.slow":             {{Name: "a", Pattern: "a", Slow: "never"}},
		"topics.a.keep":             {{Name: "a", Pattern: "a", Keep: 1}},
		"topics":                    make([]broker.Rule, maxRules+1),
	} {
		c := Default()
		c.Broker.Rules = rules
		var e *Error
		require.ErrorAs(t, c.Validate(), &e, want)
		require.Equal(t, want, e.Key)
	}
	c := Default()
	c.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a.>.b"}}
	require.ErrorContains(t, c.Validate(), `topics.a.pattern is "a.>.b": pattern "a.>.b" continues`)
}
