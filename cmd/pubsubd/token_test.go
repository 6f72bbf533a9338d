package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The example of pubsubd token --help: make keys, issue a token, inspect it.
func TestTheFirstMinuteOfTokens(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key.pem")
	r := run(t, nil, "token", "keygen", "--out", key)
	require.Zero(t, r.code, r.stderr)
	info, err := os.Stat(key)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	r = run(t, nil, "token", "keygen", "--out", key)
	require.Equal(t, exitRunTime, r.code, "a key is not replaced")

	r = run(t, nil, "token", "issue", "--key", key, "--subject", "alice", "--allow", "subscribe,publish:chat.>", "--allow=subscribe:inbox.$sub", "--claim=name=Alice", "--issuer=i")
	require.Zero(t, r.code, r.stderr)
	token := strings.TrimSpace(r.stdout)
	require.Len(t, strings.Split(token, "."), 3)

	inspect := func(args ...string) ran {
		cmd := exec.CommandContext(t.Context(), binary, append([]string{"token", "inspect"}, args...)...)
		cmd.Stdin, cmd.Env = strings.NewReader("Bearer "+token+"\n"), []string{}
		return runCommand(t, cmd)
	}
	r = inspect("--key", key+".pub", "--auth-public-claims=name", "--right=publish", "--topic=chat.1")
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `(?m)^subject +alice$`, r.stdout)
	require.Contains(t, r.stdout, "name: Alice")
	require.Contains(t, r.stdout, "\nAccepted: ")
	require.Contains(t, r.stdout, `publish on chat.1: Yes. The entry "subscribe, publish on chat.>" allows it`)
	r = inspect("--right=delete", "--topic=chat.1")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stdout, "Not verified: ")
	require.Contains(t, r.stdout, "delete on chat.1: No.")
	r = inspect("--key", key+".pub", "--auth-issuer=other")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stdout, "Refused (unauthorized): the token's issuer (iss) differs from auth.issuer.\nRemedy: ")

	file := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(file, []byte(token), 0o600))
	require.Zero(t, run(t, []string{"PUBSUBD_AUTH_KEYS=" + key + ".pub"}, "token", "inspect", "--file", file).code)
}

func TestTokenCommandLinesThatCannotBeObeyed(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key.json")
	require.Zero(t, run(t, nil, "token", "keygen", "--type=HS256", "--out", key).code)
	require.NoFileExists(t, key+".pub")
	issue := []string{"token", "issue", "--key", key, "--subject=alice"}
	for _, args := range [][]string{
		{"token", "keygen"}, {"token", "keygen", "--out", key + "2", "--type=none"},
		{"token", "issue", "--subject=alice"}, {"token", "issue", "--key", key},
		append(issue, "--ttl=0s"), append(issue, "--allow=chat.>"), append(issue, "--allow=fly:chat.>"), append(issue, "--allow=publish:a", "--rights=[]"),
		append(issue, "--rights={}"), append(issue, "--claim=name"), append(issue, "--claim=a=1", "--claim=a=2"), append(issue, "--claim=sub=bob"),
		{"token", "inspect"}, {"token", "inspect", "--right=publish"}, {"token", "inspect", "a.b.c"}, {"token", "inspect", "--key=/nowhere"},
	} {
		r := run(t, nil, args...)
		require.Equal(t, exitUsage, r.code, "%s: %s", args, r.stderr)
		require.NotEmpty(t, r.stderr)
	}
	require.Equal(t, exitRunTime, run(t, nil, "token", "issue", "--key=/nowhere", "--subject=alice").code)
}
