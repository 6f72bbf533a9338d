package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A configured is a daemon with a file that can be changed.
type configured struct {
	*served
	file string
}

func serveConfigured(t *testing.T, yaml string, args ...string) *configured {
	t.Helper()
	c := &configured{file: filepath.Join(t.TempDir(), "pubsubd.yaml")}
	require.NoError(t, os.WriteFile(c.file, []byte(yaml), 0o600))
	c.served = serveProcess(t, append([]string{"--config", c.file}, args...)...)
	return c
}

// reload changes the file, sends SIGHUP and waits until the log has the words.
func (c *configured) reload(yaml, words string) {
	c.Helper()
	before := strings.Count(c.stderr.String(), words)
	require.NoError(c, os.WriteFile(c.file, []byte(yaml), 0o600))
	c.signal(syscall.SIGHUP)
	require.Eventually(c, func() bool { return strings.Count(c.stderr.String(), words) > before }, patience, 5*time.Millisecond, words)
}

func (c *configured) level() string {
	c.Helper()
	resp, err := http.Get(c.admin + "/loglevel")
	require.NoError(c, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(c, err)
	return string(body)
}

// A poll waits over a reload, over one that is refused, and over one that would
// need a restart; then it is answered.
func TestSIGHUPReloads(t *testing.T) {
	s := serveConfigured(t, "log:\n  level: info\nhistory:\n  age: 5m\n", "--drain-window=5s")
	answer := make(chan string, 1)
	opened := s.post("/v1/sessions", `{"topics":["a"]}`)
	_, session, _ := strings.Cut(opened, `"session":"`)
	session, _, _ = strings.Cut(session, `"`)
	go func() {
		resp, err := http.Get(s.public + "/v1/sessions/" + session + "/poll?ack=0")
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		answer <- string(body)
	}()
	s.waitForMetric(`pubsubd_polls_parked{transport="longpoll"} 1`)

	s.reload("log:\n  level: debug\nhistory:\n  age: 4m\ndrain:\n  window: 1m\nlane: off\n", `"reloaded"`)
	require.Contains(t, s.level(), "debug")
	for _, said := range []string{
		`"key":"log.level","was":"info","is":"debug"`, `"key":"history.age","was":"5m0s","is":"4m0s"`, `"changed":2,"need_restart":1`, `"key":"lane","is":"handoff","said":"off"`,
	} {
		require.Contains(t, s.stderr.String(), said)
	}
	require.NotContains(t, s.stderr.String(), `"drain.window"`, "the flag still overrides the file")

	s.reload("log:\n  level: loud\nhistory:\n  aeg: 1m\n", "nothing was reloaded")
	require.Contains(t, s.stderr.String(), s.file+`:2: log.level is \"loud\"`)
	require.Contains(t, s.stderr.String(), s.file+`:4: history.aeg is not a setting`)
	require.Contains(t, s.level(), "debug")
	require.NoError(t, os.Remove(s.file))
	s.signal(syscall.SIGHUP)
	s.waitForLog("no such file")

	s.waitForMetric(`pubsubd_polls_parked{transport="longpoll"} 1`)
	s.post("/v1/topics/a/messages", `"it waited"`)
	require.Contains(t, <-answer, `"data":"it waited"`)
	require.NotContains(t, s.stderr.String(), session)
	s.signal(syscall.SIGTERM)
	require.Zero(t, s.exit().ExitCode())
}
