//go:build linux || darwin

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// script is a contender that is a line of shell.
func script(line string) contender {
	return contender{name: "script", command: func(l *launch) error {
		l.listensOn(1) // nobody does
		l.run("sh", "-c", line)
		return nil
	}}
}

func TestAServerThatEndsSaysWhy(t *testing.T) {
	_, err := start(t.Context(), script("echo first; echo port taken >&2; exit 1"))
	require.EqualError(t, err, "start script: ended before it was ready: port taken")
}

func TestAServersFolderIsNotInItsLastWords(t *testing.T) {
	_, err := start(t.Context(), contender{name: "script", command: func(l *launch) error {
		l.listensOn(1)
		l.run("sh", "-c", "echo no file $0/x >&2", l.folder)
		return nil
	}})
	require.EqualError(t, err, "start script: ended before it was ready: no file …/x")
}

func TestAServerThatIsNotThere(t *testing.T) {
	_, err := start(t.Context(), contender{name: "nobody", command: func(l *launch) error {
		l.run("no-such-program-at-all")
		return nil
	}})
	require.ErrorContains(t, err, "start nobody: ")
}

func TestServersSeeNoTuning(t *testing.T) {
	t.Setenv("GOMAXPROCS", "1")
	t.Setenv("PUBSUBD_LANE", "off")
	for _, line := range plainEnvironment() {
		require.NotRegexp(t, "^(GOMAXPROCS|PUBSUBD_LANE)=", line)
	}
}

func TestAServersFolderGoesWithIt(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	_, err := start(t.Context(), script("exit 1"))
	require.Error(t, err)
	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	require.Empty(t, left)
}
