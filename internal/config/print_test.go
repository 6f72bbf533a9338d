package config

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
	"github.com/pubsubd/pubsubd/internal/limit"
)

func read(t *testing.T, environ []string, args ...string) Loaded {
	t.Helper()
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	l := Bind(fs)
	require.NoError(t, fs.Parse(args))
	loaded, err := l.Load(environ)
	require.NoError(t, err)
	return loaded
}

// everything returns a Config with rules and without any default.
func everything(t *testing.T) Config {
	c := Default()
	for _, s := range settings(&c) {
		require.NoError(t, s.set(other(t, s)))
	}
	c.Listen = Listen{Public: "127.0.0.1:7771", Admin: "127.0.0.1:7772", TCP: "127.0.0.1:7773"}
	pair := certtest.New(t)
	c.PublishHook.URL, c.PublishHook.Secret = "", "" // a secret is never printed
	c.AuthorizeHook.URL, c.AuthorizeHook.Secret = "", ""
	c.EventsHook.URL, c.EventsHook.Secret = "", ""
	c.TLS, c.ACME = TLS{Cert: pair.Cert, Key: pair.Key, ClientCA: certtest.NewAuthority(t).File}, Default().ACME
	c.Auth.Keys, c.Auth.APIKeys = nil, "" // the files must exist
	c.Broker.Rules = []broker.Rule{
		{Name: "all", Pattern: ">"}, {Name: "one", Pattern: "*"},
		{Name: "x-pattern", Pattern: "a.*.>", HistoryMessages: 1, HistoryBytes: 1 << 20, HistoryAge: 1e6, Slow: broker.DropOldest, Keep: 2},
	}
	for _, r := range c.Broker.Rules {
		c.Limit.Rules = append(c.Limit.Rules, limit.Rule{Name: r.Name, Pattern: r.Pattern})
	}
	c.Limit.Rules[1].Rate = limit.Rate{PerSecond: 1.0 / 60, Burst: 9}
	require.NoError(t, c.Validate())
	return c
}

// oddPaths are texts that YAML would misread without quotes.
var oddPaths = []string{"null", "~", "true", "0x10", "1e3", "a: b", "a #b", "#a", " a ", "it's", `"quoted"`, `back\slash`, "two\nlines", "$HOME `id`", "-", "*a", "&a", "a:", "ä", "\x01", "{}", "[a, b]", "@", "a:b@c"}

// awkward returns configurations that are hard to print.
func awkward(t *testing.T) []Config {
	t.Helper()
	configs := []Config{Default(), everything(t)}
	for _, path := range oddPaths {
		c := Default()
		c.AddressesFile = path
		configs = append(configs, c)
	}
	return configs
}

func TestThePrintedFileReadsBack(t *testing.T) {
	for _, c := range awkward(t) {
		loaded := Loaded{Config: c, origin: map[string]string{"log.level": "a\nfile:1", "addresses_file": "flag --addresses-file"}}
		got, err := load(t, loaded.YAML(), nil)
		require.NoError(t, err, loaded.YAML())
		require.Equal(t, c, got, loaded.YAML())
	}
}

// The variables of the environment set every setting.
func TestTheEnvironmentSetsEverySetting(t *testing.T) {
	for _, c := range awkward(t) {
		var environ []string
		for _, row := range allSettings(&c) {
			if row.given() {
				environ = append(environ, row.env()+"="+row.text())
			}
		}
		got, err := load(t, "", environ)
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
}

func TestSettingsArePrintedWithTheirOrigin(t *testing.T) {
	yaml := read(t, []string{"PUBSUBD_LOG_LEVEL=warn", "PUBSUBD_TOPICS_A_PATTERN=a.>"}, "--history-age=2m", "--topics=a.keep=3", "--topics=a.slow=drop_oldest", "--cors-origins=https://a.example,https://b.example").YAML()
	for _, line := range []string{
		"log:\n  level: warn # environment variable PUBSUBD_LOG_LEVEL\n  format: json\n",
		"  age: 2m0s # flag --history-age\n",
		"cors:\n  origins: [https://a.example, https://b.example] # flag --cors-origins\n",
		"topics:\n  a:\n    pattern: \"a.>\" # environment variable PUBSUBD_TOPICS_A_PATTERN\n    slow: drop_oldest # flag --topics a.slow\n    keep: 3 # flag --topics a.keep\n",
		"addresses_file: \"\"\n",
	} {
		require.Contains(t, yaml, line)
	}
	require.Contains(t, read(t, nil, "--config=../../deploy/pubsubd.yaml").YAML(), "  messages: 1000 # ../../deploy/pubsubd.yaml:")
}

func TestSummary(t *testing.T) {
	s := read(t, []string{"PUBSUBD_LOG_LEVEL=warn", "PUBSUBD_TOPICS_A_PATTERN=a.>"}, "--config=../../deploy/pubsubd.yaml", "--history-age=2m").Summary()
	require.Contains(t, s, "listens   127.0.0.1:8080 for clients, 127.0.0.1:8081 for operators\n")
	require.Regexp(t, `settings  \d+ given, \d+ by ../../deploy/pubsubd.yaml, 1 by flags, 2 by the environment; a reload reaches \d+ of \d+\n`, s)
	require.Contains(t, s, "rules     1 for topics\n")
}

func TestASecretIsShownNowhere(t *testing.T) {
	token, level := "hunter2", "info"
	secret := func(to *string) *field { f := path(to); f.isSecret = true; return f }
	rows := []setting{
		{"auth.token", secret(&token), "a secret"},
		{"log.level", word(&level, "info", "warn"), "none"},
	}
	require.Equal(t, "auth:\n  token: \"(secret)\" # pubsubd.yaml:2\nlog:\n  level: info\n", yamlOf(rows, map[string]string{"auth.token": "pubsubd.yaml:2"}))

	changes := changesOf(rows[:1], []setting{{"auth.token", secret(new(string)), ""}})
	require.Equal(t, []Change{{Key: "auth.token", Old: masked, New: "", Live: true}}, changes)

	strict := word(&level, "info", "warn")
	strict.isSecret = true
	r := newReading(new(Config))
	r.set(setting{"auth.token", strict, ""}, "hunter2", "flag --auth-token")
	require.EqualError(t, r.wrong.join(), `flag --auth-token: auth.token is "(secret)": want info or warn`)
}

func TestTheHookSecretIsMasked(t *testing.T) {
	c := Default()
	c.PublishHook.URL, c.PublishHook.Secret = "http://127.0.0.1:9000/", "hunter2 hunter2 hunter2 hunter2"
	require.NoError(t, c.Validate())
	loaded := Loaded{Config: c}
	require.NotContains(t, loaded.YAML()+loaded.Summary(), "hunter2")
	for _, change := range Default().Changes(c) {
		require.NotContains(t, change.New+change.Old, "hunter2")
	}
	c.PublishHook.Secret = "hunter2"
	require.ErrorContains(t, c.Validate(), "needs at least 24")
	require.NotContains(t, c.Validate().Error(), "hunter2")
}

// A valid URL is printed in full, even if it looks like one with a password.
func TestAHookURLIsShownWhole(t *testing.T) {
	const url = "http://127.0.0.1:9000/@publish?to=me@example.com"
	c := Default()
	c.PublishHook.URL, c.PublishHook.Secret = url, "hunter2 hunter2 hunter2 hunter2"
	require.NoError(t, c.Validate())
	require.Contains(t, Loaded{Config: c}.YAML(), url)
	require.Equal(t, url, Default().Changes(c)[0].New)
	c.PublishHook.Secret = ""
	require.ErrorContains(t, c.Validate(), url)
}

func TestAnOptionalFieldMayBeLeftOut(t *testing.T) {
	var n int
	f := optional(number{least: 1, most: 10}.field(&n))
	require.NoError(t, f.check())
	require.False(t, f.given())
	require.Empty(t, f.text())
	require.Error(t, f.set("0"))
	require.NoError(t, f.set("5"))
	require.True(t, f.given())
	require.Equal(t, "5", f.text())
	n = 11
	require.Error(t, f.check())
}
