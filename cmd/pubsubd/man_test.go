package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryCommandHasAPageOfTheManual(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	r := run(t, nil, "man", dir)
	require.Zero(t, r.code, r.stderr)
	for _, page := range []string{"pubsubd", "pubsubd-serve", "pubsubd-publish", "pubsubd-topics-delete", "pubsubd-store-repair", "pubsubd-loadtest-broadcast", "pubsubd-loadtest-transports", "pubsubd-loadtest-encoding", "pubsubd-loadtest-transports"} {
		text, err := os.ReadFile(filepath.Join(dir, page+".1"))
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), ".TH PUBSUBD"), "%s", text)
		require.Contains(t, string(text), ".SH OPTIONS")
	}
	text, err := os.ReadFile(filepath.Join(dir, "pubsubd-publish.1"))
	require.NoError(t, err)
	require.Contains(t, string(text), "pubsubd\\-publish \\- Publish a message")
	require.Contains(t, string(text), `\-\-idempotency\-key`)
	require.Contains(t, string(text), ".SH SEE ALSO\npubsubd(1)\n")
	_, err = os.Stat(filepath.Join(dir, "pubsubd-floor.1"))
	require.ErrorIs(t, err, os.ErrNotExist, "it is hidden")
	r = run(t, nil, "man", "/dev/null/man1")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "manual pages")
}

func TestRoffShowsTextAsItIs(t *testing.T) {
	require.Equal(t, "a\\-b \\eX\n\\&.TH\n\\&'quoted'\n .", roff("a-b \\X\n.TH\n'quoted'\n ."))
}

func TestShellsCompleteCommands(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := run(t, nil, "completion", shell)
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, "pubsubd")
	}
	require.Contains(t, run(t, nil, "__complete", "pub").stdout, "publish\t")
	require.Contains(t, run(t, nil, "__complete", "sessions", "--sort", "").stdout, "idle")
}

func TestShellsCompleteTopicsAndPresets(t *testing.T) {
	s := serveProcess(t)
	for _, topic := range []string{"prices.acme", "prices.beta", "news"} {
		s.do("publish", topic, "1")
	}
	complete := func(args ...string) string { return s.do(append([]string{"__complete"}, args...)...).stdout }
	const none = ":4\n" // of cobra: nothing, and no names of files
	require.Equal(t, "news\nprices.acme\nprices.beta\n:4\n", complete("subscribe", ""))
	require.Equal(t, "prices.acme\nprices.beta\n:4\n", complete("subscribe", "news", "pri"))
	require.Equal(t, "news\n:4\n", complete("publish", "n"))
	require.Equal(t, none, complete("publish", "news", ""))
	require.Equal(t, "prices.acme\n:4\n", complete("topics", "delete", "prices.a"))
	require.Equal(t, none, complete("subscribe", "--server=127.0.0.1:1", ""))
	require.Equal(t, none, complete("subscribe", "--server=nowhere", ""))
	require.Equal(t, "example\nlaharsub\nsilverlight3\n:4\n", complete("loadtest", "--preset", ""))
	require.Contains(t, complete("loadtest", "collab", "--preset=l"), "laharsub\n")
	require.Contains(t, complete("loadtest", "scenarios", "s"), "silverlight3\n")
}
