// Package deploy_test tries what is in this directory, as it stands: the image's
// root, the unit, and that the settings they give are ones that the daemon takes.
// The proxies' examples are tried in internal/daemon, rules, dashboard and chart in
// deploy/checks, a module of its own.
package deploy_test

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
)

// missing ends a test that needs what this machine has not: CI must have it.
func missing(t *testing.T, what, remedy string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s, and CI must: %s", what, remedy)
	}
	t.Skipf("%s: %s", what, remedy)
}

// load is what the daemon makes of an environment and its arguments after serve.
func load(t *testing.T, environment []string, arguments ...string) (config.Config, error) {
	t.Helper()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	loader := config.Bind(flags)
	require.NoError(t, flags.Parse(arguments))
	loaded, err := loader.Load(environment)
	return loaded.Config, err
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// instruction returns what follows an instruction of the Dockerfile, or what a line of another
// file has in parentheses of the pattern.
func instruction(t *testing.T, dockerfile, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + pattern + `$`).FindStringSubmatch(dockerfile)
	require.NotNil(t, found, pattern)
	return found[1]
}

// run runs a command and returns what it said.
func run(t *testing.T, name string, arguments ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, arguments...)
	out, err := command.CombinedOutput()
	return string(out), err
}
