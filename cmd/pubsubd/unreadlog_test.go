package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// serveInto starts a daemon whose standard error is a pipe, and waits until it serves.
func serveInto(t *testing.T, args ...string) (s *served, stderr *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(binary)
	cmd.Stderr = w
	s = startServe(t, cmd, []string{}, args...)
	require.NoError(t, w.Close())
	t.Cleanup(func() { r.Close() })
	s.waitReady()
	return s, r
}

// logMuch makes so many lines of the log that they do not fit into a pipe.
func (s *served) logMuch() {
	s.Helper()
	for range 1000 {
		s.post("/v1/topics/noise/messages", "1")
	}
}

// The reader of the log ends. The daemon goes on without the log, and ends as planned.
func TestTheDaemonOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	s, stderr := serveInto(t, "--log-access=1")
	require.NoError(t, stderr.Close())
	require.Eventually(t, func() bool { // a child that another test starts has the reader, too, until it runs
		s.post("/v1/topics/a/messages", "1")
		return s.metric(`pubsubd_log_dropped_total{level="info"}`) > 0
	}, patience, 5*time.Millisecond)
	s.post("/v1/topics/a/messages", "2")
	s.signal(syscall.SIGTERM)
	require.Zero(t, s.exit().ExitCode())
}

// Nobody reads the log, and its pipe is full. Keys that are revoked are noticed, requests that
// log something are answered, and SIGTERM ends the daemon.
func TestALogThatNobodyReadsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys")
	made := run(t, nil, "key", "new", "--name=worker", "--allow=subscribe,publish:>", "--file", file)
	require.Zero(t, made.code, made.stderr)
	s, stderr := serveInto(t, "--log-access=1", "--auth-api-keys", file, "--auth-anonymous", `[{"topics":["noise"],"allow":["publish"]}]`)
	s.logMuch()
	ask := func(host, origin string) int {
		r, err := http.NewRequest("GET", s.public+"/v1/topics/a/messages", nil)
		require.NoError(t, err)
		r.Host = host
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(made.stdout))
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		resp.Body.Close()
		return resp.StatusCode
	}
	require.Equal(t, http.StatusMisdirectedRequest, ask("evil.example", ""))
	require.Equal(t, http.StatusForbidden, ask("", "https://evil.example"))
	require.Equal(t, http.StatusForbidden, ask("", ""), "without the right history")

	require.Zero(t, run(t, nil, "key", "revoke", "worker", "--file", file).code)
	require.Eventually(t, func() bool { return ask("", "") == http.StatusUnauthorized }, patience, 50*time.Millisecond)
	s.signal(syscall.SIGTERM)
	require.Zero(t, s.exit().ExitCode())

	text, err := io.ReadAll(stderr)
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	for _, line := range lines[:len(lines)-1] { // the pipe may have had no space for all of the last one
		require.True(t, json.Valid([]byte(line)), line)
	}
	require.Greater(t, len(lines), 100)
}
