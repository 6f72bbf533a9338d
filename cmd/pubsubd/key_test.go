package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPIKeysAreMadeListedAndRevoked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	r := run(t, nil, "key", "new", "--file", file, "--name=billing", "--allow=publish,delete:prices.>,news", "--allow=subscribe:inbox.$sub")
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `^psk_[A-Za-z0-9_-]{43}\n$`, r.stdout)
	env := []string{apiKeysEnv + "=" + file}
	worker := run(t, env, "key", "new", "--name=worker", "--allow=subscribe:jobs", "--valid-for=48h")
	require.Regexp(t, `^psk_`, worker.stdout)

	list := run(t, env, "key", "list")
	lines := strings.Split(list.stdout, "\n")
	require.Regexp(t, `^NAME +CREATED +EXPIRES +RIGHTS$`, lines[0])
	require.Regexp(t, `^billing +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ +never +publish,delete:prices\.>,news subscribe:inbox\.\$sub$`, lines[1])
	require.Regexp(t, `^worker +\S+Z +\S+Z +subscribe:jobs$`, lines[2])
	asJSON := run(t, env, "key", "list", "--json").stdout
	require.Contains(t, asJSON, `"topics":["prices.>","news"]`)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), `"topics":["prices.>","news"]`)
	for _, shown := range []string{list.stdout, list.stderr, asJSON, string(text), r.stderr} {
		require.NotContains(t, shown, strings.TrimSpace(r.stdout)[4:20])
	}
	require.NotContains(t, asJSON, "hash")

	require.Zero(t, run(t, env, "key", "revoke", "billing").code)
	require.NotContains(t, run(t, env, "key", "list").stdout, "billing")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestAKeyIsWrittenToANewFile(t *testing.T) {
	folder := t.TempDir()
	out, env := filepath.Join(folder, "worker.key"), []string{apiKeysEnv + "=" + filepath.Join(folder, "keys")}
	r := run(t, env, "key", "new", "--name=worker", "--allow=subscribe:jobs", "--out", out)
	require.Zero(t, r.code, r.stderr)
	require.Empty(t, r.stdout)
	secret, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Regexp(t, `^psk_[A-Za-z0-9_-]{43}\n$`, string(secret))
	info, err := os.Stat(out)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	r = run(t, env, "key", "new", "--name=other", "--allow=subscribe:jobs", "--out", out)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "--out: open "+out+": file exists: name another file")
	again, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, secret, again)
	require.NotContains(t, run(t, env, "key", "list").stdout, "other", "a key that nobody has is not in force")

	r = run(t, env, "key", "new", "--name=worker", "--allow=subscribe:jobs", "--out", out+".2")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "choose a different name")
	require.NoFileExists(t, out+".2")
}

// The disk is full when the key is written. The next attempt finds no file in its way.
func TestAKeyThatCannotBeWrittenLeavesNoFile(t *testing.T) {
	folder := t.TempDir()
	out, env := filepath.Join(folder, "worker.key"), []string{apiKeysEnv + "=" + filepath.Join(folder, "keys")}
	args := []string{"key", "new", "--name=worker", "--allow=subscribe:jobs", "--out", out}
	full := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `ulimit -f 0; exec "$0" "$@"`, binary}, args...)...)
	full.Env = env
	r := runCommand(t, full)
	require.Equal(t, exitRunTime, r.code, r.stderr)
	require.Contains(t, r.stderr, "--out: write "+out)
	require.NoFileExists(t, out)

	r = run(t, env, args...)
	require.Zero(t, r.code, r.stderr)
	require.FileExists(t, out)
}

func TestKeyCommandLinesThatCannotBeObeyed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	env := []string{apiKeysEnv + "=" + file}
	require.Zero(t, run(t, env, "key", "new", "--name=a", "--allow=publish:a").code)
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, c := range []struct {
		env  []string
		args string
		code int
		says string
	}{
		{nil, "new --name=b --allow=publish:b", exitUsage, "--file"},
		{nil, "list", exitUsage, apiKeysEnv},
		{nil, "revoke a", exitUsage, "--file"},
		{env, "new --allow=publish:b", exitUsage, "--name"},
		{env, "new --name=b", exitUsage, "--allow"},
		{env, "new --name=b --allow=publish", exitUsage, "a colon"},
		{env, "new --name=b --allow=write:b", exitUsage, "is not a right"},
		{env, "new --name=b --allow=publish:a..b", exitUsage, "--allow"},
		{env, "new --name=b --allow=publish:b --valid-for=-1h", exitUsage, "--valid-for"},
		{env, "new --name=b --allow=publish:b now", exitUsage, "now"},
		{env, "new --name=a --allow=publish:b", exitRunTime, "choose a different name"},
		{env, "revoke b", exitRunTime, "pubsubd key list"},
		{nil, "list --file=" + file + ".gone", exitRunTime, "no such file"},
		{nil, "new --name=b --allow=publish:b --file=/dev/null/keys", exitRunTime, "/dev/null/keys"},
	} {
		r := run(t, c.env, append([]string{"key"}, strings.Fields(c.args)...)...)
		require.Equal(t, c.code, r.code, "%s: %s", c.args, r.stderr)
		require.Contains(t, r.stderr, c.says, c.args)
		require.Empty(t, r.stdout, c.args)
	}
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
}

// Several commands add keys at the same time. None is lost.
func TestKeysAreMadeAtTheSameTime(t *testing.T) {
	env := []string{apiKeysEnv + "=" + filepath.Join(t.TempDir(), "keys")}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { run(t, env, "key", "new", fmt.Sprintf("--name=k%d", i), "--allow=publish:a") })
	}
	all.Wait()
	require.Len(t, strings.Split(strings.TrimSpace(run(t, env, "key", "list").stdout), "\n"), 9)
}
