package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigCheckSaysOkOrEverythingThatIsWrong(t *testing.T) {
	good := run(t, []string{"PUBSUBD_LOG_LEVEL=warn"}, "config", "check", "--history-age=2m", "--topics=prices.pattern=prices.>")
	require.Zero(t, good.code, good.stderr)
	require.Regexp(t, `^ok\nlistens .*127\.0\.0\.1:8080.*\nsettings  3 given, 2 by flags, 1 by the environment; .*\nrules     1 for topics\n$`, good.stdout)

	bad := run(t, []string{"PUBSUBD_LOG_LEVEL=loud"}, "config", "check", "--topics=prices.slow=drop", "--poll-timeout=soon")
	require.Equal(t, exitUsage, bad.code)
	require.Empty(t, bad.stdout)
	for _, key := range []string{"log.level", "topics.prices.slow", "topics.prices.pattern", "poll.timeout"} {
		require.Contains(t, bad.stderr, key)
	}
	require.Equal(t, exitUsage, run(t, nil, "config", "check", "--histroy-age=2m").code)
}

func TestConfigCheckWarnsOfMissingAPIKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	r := run(t, nil, "config", "check", "--auth-api-keys", file)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "\nwarning   auth.api_keys is \""+file+"\", which does not exist")
}

// What is printed is a file: with it, everything is as before.
func TestConfigPrintsAFile(t *testing.T) {
	printed := run(t, nil, "config", "print", "--history-age=2m", "--topics=prices.pattern=prices.>", "--addresses-file=/run/it's here")
	require.Zero(t, printed.code, printed.stderr)
	require.Contains(t, printed.stdout, "age: 2m0s # flag --history-age\n")
	file := filepath.Join(t.TempDir(), "pubsubd.yaml")
	require.NoError(t, os.WriteFile(file, []byte(printed.stdout), 0o600))
	again := run(t, nil, "config", "print", "--config", file).stdout
	origins := regexp.MustCompile(" # .*")
	require.Equal(t, origins.ReplaceAllString(printed.stdout, ""), origins.ReplaceAllString(again, ""))
}

func TestConfigDocIsSettingsMD(t *testing.T) {
	want, err := os.ReadFile("../../deploy/SETTINGS.md")
	require.NoError(t, err)
	require.Equal(t, string(want), run(t, nil, "config", "doc").stdout)
}
