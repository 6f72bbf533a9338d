package config

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares got with the file, or rewrites it under -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "%s is out of date: run go test ./internal/config -update", file)
}

func TestNamesAreDerivedAndUnique(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range settings(new(Config)) {
		require.Equal(t, strings.ToLower(s.key), s.key)
		for _, name := range []string{s.key, "--" + s.flag(), s.env()} {
			require.False(t, seen[name], "%s names two settings", name)
			seen[name] = true
		}
		require.NotEqual(t, configEnv, s.env())
		require.False(t, isKubernetes(s.env(), "tcp://10.0.0.1:80"), "%s looks like a variable of Kubernetes", s.env())
	}
	require.True(t, seen["history.age"] && seen["--history-age"] && seen["PUBSUBD_HISTORY_AGE"])
	require.True(t, seen["--session-inactivity-timeout"] && seen["PUBSUBD_SESSION_INACTIVITY_TIMEOUT"])
}

// A user can write each default as --help and SETTINGS.md show it.
func TestDefaultsReadBack(t *testing.T) {
	c := Default()
	for _, s := range settings(&c) {
		text := s.text()
		require.NoError(t, s.set(text), "%s", s.key)
		require.Equal(t, text, s.text(), "%s", s.key)
	}
	require.Equal(t, Default(), c)
}

// A new setting needs a group in groups.go, and a new kind of value needs an explanation in
// document.go.
func TestEverySettingHasAGroupAndAForm(t *testing.T) {
	all := append(settings(new(Config)), ruleSettings(&broker.Rule{Name: "a"}, new(limit.Rate))...)
	used := make(map[string]bool) // by key of a group
	for _, s := range all {
		require.NotEmpty(t, groupOf(s.key), s.key)
		section, _, _ := strings.Cut(s.key, ".")
		used[s.key], used[section] = true, true
		require.True(t, s.kind == "word" || slices.ContainsFunc(forms, func(f struct{ kind, meaning string }) bool { return f.kind == s.kind }), "%s is a %s", s.key, s.kind)
	}
	for _, g := range groups() {
		for _, key := range g.keys {
			require.True(t, used[key], "%s has no setting %s", g.name, key)
		}
	}
	for _, key := range firstSettings() {
		require.True(t, used[key], key)
	}
}

func TestSettingsDocument(t *testing.T) { golden(t, "../../deploy/SETTINGS.md", Document()) }

func TestFlagHelpShowsDefaults(t *testing.T) {
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	Bind(fs)
	require.Contains(t, fs.FlagUsages(), "--history-age duration")
	require.Contains(t, fs.FlagUsages(), "(default 1m0s)")
	require.Contains(t, fs.FlagUsages(), "(default 64KiB)")
	require.NotContains(t, fs.FlagUsages(), "(default false)")
}

// --help omits the nineteen flags of rates, which would hide the others. The flags work.
func TestFlagHelpLeavesRatesOut(t *testing.T) {
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	l := Bind(fs)
	require.NotContains(t, fs.FlagUsages(), "--rates-")
	require.NoError(t, fs.Parse([]string{"--rates-polls-address=10/s"}))
	c, err := l.Load(nil)
	require.NoError(t, err)
	require.EqualValues(t, 10, c.Limit.Rates[limit.Polls][limit.Address].PerSecond)
}

// A new kind or scope of the limiter needs a text in settings.go.
func TestEveryRateIsExplained(t *testing.T) {
	for _, kind := range limit.Kinds() {
		require.NotEmpty(t, ratedKinds[kind], kind)
		for _, scope := range kind.Scopes() {
			require.NotEmpty(t, ratedScopes[scope], scope)
		}
	}
}

func TestRatesOfTheFile(t *testing.T) {
	c, err := load(t, "rates:\n  polls: {address: 10/s burst 50, all: 5000/s}\n  misses.address: 30/m\n  sessions:\n    address: off\n", nil)
	require.NoError(t, err)
	var want limit.Rates
	want[limit.Polls][limit.Address] = limit.Rate{PerSecond: 10, Burst: 50}
	want[limit.Polls][limit.All] = limit.Rate{PerSecond: 5000}
	want[limit.Misses][limit.Address] = limit.Rate{PerSecond: 0.5}
	require.Equal(t, want, c.Limit.Rates)
}
