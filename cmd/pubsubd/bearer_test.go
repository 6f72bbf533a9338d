package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// writeToken writes the file of a token as people do, with an end of line.
func writeToken(t *testing.T, file, token string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o644))
	return file
}

// A daemon knows its clients by tokens and API keys. Every command sends one, over every
// transport, and nothing shows it.
func TestCommandsSendATokenOrAnAPIKey(t *testing.T) {
	i := newIssuer(t)
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	key := strings.TrimSpace(run(t, nil, "key", "new", "--file", keys, "--name=worker", "--allow=publish,subscribe,delete:>").stdout)
	s := serveProcess(t, append(i.args, "--auth-api-keys", keys, "--listen-tcp=127.0.0.1:0")...)
	server := []string{serverEnv + "=" + s.public}

	type command struct {
		code int
		args []string
	}
	commands := []command{{0, []string{"publish", "a", `"m1"`}}, {0, []string{"topics"}}}
	for _, transport := range transportNames {
		args := []string{"subscribe", "a", "--from=oldest", "--count=1", "--transport", transport}
		if transport == "tcp" {
			args = append(args, "--tcp", s.tcp)
		}
		commands = append(commands, command{0, args})
	}
	for kind, c := range map[string]struct {
		token   string
		deletes int
	}{"token": {i.token("ann", time.Now()), exitRunTime}, "API key": {key, 0}} {
		file := writeToken(t, filepath.Join(dir, "token"), "\ufeff"+c.token+"\r\n")
		for _, command := range append(commands, command{c.deletes, []string{"topics", "delete", "a"}}) {
			byFile := run(t, server, append(command.args, "--token-file", file)...)
			if command.args[0] == "topics" {
				run(t, append(server, tokenEnv+"="+key), "publish", "a", `"m2"`) // so that there is a topic to list and to delete again
			}
			byVariable := run(t, append(server, tokenEnv+"="+c.token), command.args...)
			for _, r := range []ran{byFile, byVariable} {
				require.Equal(t, command.code, r.code, "%s: %v: %s", kind, command.args, r.stderr)
				require.NotContains(t, r.stdout+r.stderr, c.token)
				require.NotContains(t, r.stderr, "trying again")
				if command.code == 0 {
					require.Contains(t, r.stdout, "a")
				} else {
					require.Contains(t, r.stderr, "forbidden")
				}
			}
		}
		help := run(t, append(server, tokenEnv+"="+c.token), "subscribe", "--help")
		require.Contains(t, help.stdout, "--token-file FILE")
		require.NotContains(t, help.stdout+s.stderr.String(), c.token)
	}

	for _, command := range commands {
		r := run(t, server, append(command.args, "--timeout=30s")...)
		if command.args[0] != "topics" { // whoever may read nothing gets an empty list
			require.Equal(t, exitRunTime, r.code, command.args)
			require.Contains(t, r.stderr, "--token-file or PUBSUBD_TOKEN", command.args)
		}
	}
	r := run(t, append(server, tokenEnv+"=psk_wrong"), "publish", "a", "1")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "unauthorized")
	require.NotContains(t, r.stderr, "psk_wrong")
	require.NotContains(t, r.stderr, tokenEnv, "a token was sent")
}

func TestTokensThatCannotBeSent(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		f, err := os.CreateTemp(dir, "token")
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		return "--token-file=" + f.Name()
	}
	for name, c := range map[string]struct{ variable, flag, says string }{
		"no file":           {"", "--token-file=/gone", "--token-file: open /gone: no such file"},
		"no name":           {"", "--token-file=", "--token-file: "},
		"a folder":          {"", "--token-file=" + dir, "is a directory"},
		"an empty file":     {"", file(""), "is empty"},
		"white space":       {"", file(" \r\n"), "is empty"},
		"two lines":         {"", file("psk_secret\npsk_other\n"), "on one line"},
		"with its scheme":   {"", file("Bearer psk_secret"), `no "Bearer"`},
		"no text":           {"", file("psk_secret\x00"), "one token"},
		"a large file":      {"", file(strings.Repeat("psk_secret", 10_000)), "65536 bytes"},
		"a variable":        {"psk_secret\npsk_other", "--timeout=1s", "PUBSUBD_TOKEN must have one token"},
		"an empty variable": {" ", "--timeout=1s", "PUBSUBD_TOKEN is empty"},
		"both":              {"psk_secret", file("psk_secret"), "--token-file and PUBSUBD_TOKEN are both set: use one"},
	} {
		for _, command := range []string{"publish a 1", "subscribe a", "topics", "topics delete a"} {
			r := run(t, []string{tokenEnv + "=" + c.variable}, append(strings.Fields(command), c.flag)...)
			require.Equal(t, exitUsage, r.code, "%s: %s: %s", name, command, r.stderr)
			require.Contains(t, r.stderr, c.says, name)
			require.NotContains(t, r.stderr, "psk_", name)
		}
	}
}

// A script renews the file of a token while subscribers run. They go on past the end of
// their first token.
func TestASubscribeOutlivesATokenWhoseFileIsRewritten(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	s := serveProcess(t, append(i.args, "--listen-tcp=127.0.0.1:0")...)
	const lasts = 8 * time.Second
	issued := time.Now().Add(lasts - time.Hour)
	file := writeToken(t, filepath.Join(t.TempDir(), "token"), i.token("ann", issued))
	type subscriber struct {
		*exec.Cmd
		stdout, stderr bytes.Buffer
	}
	var all []*subscriber
	for _, transport := range transportNames {
		args := []string{"subscribe", "a", "--count=1", "--server", s.public, "--token-file", file, "--transport", transport}
		if transport == "tcp" {
			args = append(args, "--tcp", s.tcp)
		}
		c := &subscriber{Cmd: exec.CommandContext(t.Context(), binary, args...)}
		c.Env, c.Stdout, c.Stderr = []string{}, &c.stdout, &c.stderr
		require.NoError(t, c.Start())
		all = append(all, c)
	}
	s.waitForMetric("pubsubd_subscriptions 6")
	renewed := i.token("ann", time.Now())
	writeToken(t, file, renewed)
	require.Eventually(t, func() bool { return time.Now().After(issued.Add(time.Hour + 2*time.Second)) }, patience, 10*time.Millisecond)
	s.waitForMetric("pubsubd_subscriptions 6")
	r := run(t, nil, "publish", "a", `"after"`, "--server", s.public, "--token-file", file)
	require.Zero(t, r.code, r.stderr)
	for _, c := range all {
		require.NoError(t, c.Wait(), "%v: %s", c.Args, &c.stderr)
		require.Contains(t, c.stdout.String(), `"after"`)
		require.NotContains(t, c.stderr.String()+s.stderr.String(), renewed)
	}
}
