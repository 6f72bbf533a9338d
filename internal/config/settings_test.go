package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
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
		require.False(t, fromKubernetes(s.env()), "%s would be taken for one of Kubernetes' own", s.env())
	}
	require.True(t, seen["history.age"] && seen["--history-age"] && seen["PUBSUBD_HISTORY_AGE"])
	require.True(t, seen["--session-inactivity-timeout"] && seen["PUBSUBD_SESSION_INACTIVITY_TIMEOUT"])
}

// What --help and SETTINGS.md say of a default must be what a user can write.
func TestDefaultsReadBack(t *testing.T) {
	c := Default()
	for _, s := range settings(&c) {
		text := s.field.text()
		require.NoError(t, s.field.set(text), "%s", s.key)
		require.Equal(t, text, s.field.text(), "%s", s.key)
	}
	require.Equal(t, Default(), c)
}

func TestSettingsDocument(t *testing.T) {
	c := Default()
	var doc strings.Builder
	doc.WriteString(settingsHead)
	for _, s := range settings(&c) {
		text := s.field.text()
		if text == "" {
			text = "none"
		}
		fmt.Fprintf(&doc, "| `%s` | %s | %s | %s |\n", s.key, text, s.field.allowed(), s.doc)
	}
	golden(t, "SETTINGS.md", doc.String())
}

const settingsHead = `# Settings

Each setting can be given in three places; the first that has it counts: a flag (` + "`--history-age 2m`" + `), an environment
variable (` + "`PUBSUBD_HISTORY_AGE=2m`" + `), the YAML file that ` + "`--config`" + ` or ` + "`PUBSUBD_CONFIG`" + ` names:

    history:
      age: 2m
      bytes: 4MiB

Dots in the names below are levels in the file. In flags, dots and underscores become dashes. Sizes are bytes, or whole
KiB, MiB or GiB (1024, 1024², 1024³ bytes); durations are numbers with ms, s, m or h. An unknown name, a name given twice
in the file, or a value out of bounds keeps the daemon from starting. (` + "`PUBSUBD_PORT`" + `, ` + "`PUBSUBD_SERVICE_HOST`" + ` and their like are
Kubernetes', not ours, and ignored.) This table is made from settings.go by its test.

| setting | default | may be | |
|---|---|---|---|
`

func TestFlagHelpShowsDefaults(t *testing.T) {
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	Bind(fs)
	require.Contains(t, fs.FlagUsages(), "--history-age duration")
	require.Contains(t, fs.FlagUsages(), "(default 1m0s)")
	require.Contains(t, fs.FlagUsages(), "(default 64KiB)")
	require.NotContains(t, fs.FlagUsages(), "(default false)")
}
