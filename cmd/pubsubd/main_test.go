package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long anything may take that is only waited for: a busy machine holds
// processes up for seconds.
const patience = 30 * time.Second

// binary is the real thing, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "pubsubd")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "pubsubd")
	build := exec.Command("go", "build", "-ldflags", "-s -X main.version=v0.0.0-test", "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// ran is what a run of the binary came to.
type ran struct {
	code   int
	stdout string
	stderr string
}

// run runs the binary to its end with only the given environment.
func run(t *testing.T, env []string, args ...string) ran {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = env
	return runCommand(t, cmd)
}

// runCommand runs a command to its end.
func runCommand(t *testing.T, cmd *exec.Cmd) ran {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func TestCommandLinesThatCannotBeObeyed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "pubsubd.yaml")
	require.NoError(t, os.WriteFile(file, []byte("history:\n  mesages: 5\n"), 0o600))
	for _, c := range []struct {
		name string
		env  []string
		args []string
		code int
		says []string
	}{
		{"unknown command", nil, []string{"sreve"}, 2, []string{`unknown command "sreve" for "pubsubd"; did you mean serve? (see pubsubd --help)`}},
		{"unknown command with an argument", nil, []string{"publsh", "a", "1"}, 2, []string{"did you mean publish?"}},
		{"unknown command with a flag of another", nil, []string{"publsh", "a", "--type", "text/plain"}, 2, []string{`"publsh"`, "did you mean publish?"}},
		{"a command in the singular", nil, []string{"session"}, 2, []string{"did you mean sessions?"}},
		{"unknown command below another", nil, []string{"topics", "delte", "a"}, 2, []string{`"delte" for "pubsubd topics"; did you mean delete?`}},
		{"unknown command below loadtest", nil, []string{"loadtest", "brodcast", "--clients=5"}, 2, []string{"did you mean broadcast?"}},
		{"nothing like a command", nil, []string{"frobnicate"}, 2, []string{`unknown command "frobnicate" for "pubsubd" (see`}},
		{"unknown flag of a client", nil, []string{"publish", "a", "1", "--tpye=text/plain"}, 2, []string{"unknown flag: --tpye (see pubsubd publish --help)"}},
		{"a flag with one dash", nil, []string{"publish", "a", "1", "-type=text/plain"}, 2, []string{"-type=text/plain (see pubsubd publish --help)"}},
		{"unknown flag of a load test", nil, []string{"loadtest", "collab", "--topic=5"}, 2, []string{"unknown flag: --topic (see"}},
		{"unknown value", nil, []string{"subscribe", "a", "--transport=websoket"}, 2, []string{`--transport "websoket": use auto, longpoll, stream, sse, websocket, tcp`}},
		{"unknown value of a list", nil, []string{"loadtest", "transports", "--transports=batch,singel"}, 2, []string{`--transports "singel": use `, "single"}},
		{"unknown value of a setting", nil, []string{"serve", "--log-level=wran"}, 2, []string{`log.level is "wran": want `, "warn"}},
		{"unknown flag", nil, []string{"serve", "--histry-age=1s"}, 2, []string{"--histry-age (see pubsubd serve --help)"}},
		{"an argument too many", nil, []string{"serve", "now"}, 2, []string{`"now" is one argument too many: pubsubd serve takes none (see pubsubd serve --help)`}},
		{"a value without =", nil, []string{"loadtest", "soak", "--store", "always"}, 2, []string{`"always" is one argument too many: pubsubd loadtest soak takes none; did you mean --store=always?`}},
		{"no number", nil, []string{"sessions", "--limit=few"}, 2, []string{`--limit "few": want a whole number (see pubsubd sessions --help)`}},
		{"a duration without unit", nil, []string{"publish", "a", "1", "--ttl=5"}, 2, []string{`--ttl "5": want a duration, such as 250ms, 90s or 2m (see`}},
		{"no durations", nil, []string{"loadtest", "broadcast", "--period=1s,2"}, 2, []string{`--period "1s,2": want durations, such as 200ms,1s (see`}},
		{"bad value", nil, []string{"serve", "--poll-timeout=soon"}, 2, []string{"poll.timeout", "soon"}},
		{"bad environment", []string{"PUBSUBD_HISTORY_BYTES=lots"}, []string{"serve"}, 2, []string{"PUBSUBD_HISTORY_BYTES", "lots"}},
		{"unknown environment", []string{"PUBSUBD_HISTORY_SIZE=1"}, []string{"serve"}, 2, []string{"PUBSUBD_HISTORY_SIZE"}},
		{"bad file", nil, []string{"serve", "--config", file}, 2, []string{file + ":2", "history.mesages is not a setting: `pubsubd config doc` describes the settings"}},
		{"no file", nil, []string{"serve", "--config", file + ".gone"}, 2, []string{file + ".gone"}},
		{"beyond loopback", nil, []string{"serve", "--listen-public=0.0.0.0:0"}, 2, []string{"0.0.0.0:0", "--insecure"}},
		{"taken address", nil, []string{"serve", "--listen-public", taken.Addr().String()}, 1, []string{"listen.public", "in use"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, c.env, c.args...)
			require.Equal(t, c.code, r.code, r.stderr)
			require.Empty(t, r.stdout)
			for _, words := range c.says {
				require.Contains(t, r.stderr, words)
			}
		})
	}
}

func TestVersionAndHelp(t *testing.T) {
	require.Contains(t, run(t, nil, "version").stdout, "pubsubd v0.0.0-test go1.")
	for _, args := range [][]string{nil, {"--help"}, {"serve", "--help"}, {"loadtest", "--help"}, {"loadtest", "broadcast", "--help"}, {"loadtest", "collab", "--help"}} {
		r := run(t, nil, args...)
		require.Zero(t, r.code)
		require.Contains(t, r.stdout, "Usage:\n  "+strings.Join(append([]string{"pubsubd"}, withoutFlags(args)...), " "))
	}
}

// The guides are in the binary, as they are in the repository.
func TestHelpPrintsGuides(t *testing.T) {
	for name, file := range map[string]string{
		"protocol":  "../../pkg/wire/PROTOCOL.md",
		"clients":   "../../pkg/wire/CLIENTS.md",
		"operating": "../../deploy/README.md",
		"loadtest":  "../../loadtest/README.md",
	} {
		r := run(t, nil, "help", name)
		require.Zero(t, r.code, r.stderr)
		require.Equal(t, written(t, file), r.stdout, name)
		require.Contains(t, run(t, nil, "help", "--help").stdout, "\n  "+name+" ")
		require.Contains(t, run(t, nil, "--help").stdout, name)
	}
}

func TestHelpExplainsCommands(t *testing.T) {
	require.Equal(t, run(t, nil, "--help").stdout, run(t, nil, "help").stdout)
	require.Equal(t, run(t, nil, "publish", "--help").stdout, run(t, nil, "help", "publish").stdout)
	require.Equal(t, run(t, nil, "loadtest", "collab", "--help").stdout, run(t, nil, "help", "loadtest", "collab").stdout)
	require.Equal(t, run(t, nil, "topics", "delete", "--help").stdout, run(t, nil, "help", "topics", "delete").stdout)
	for _, c := range []struct{ args, says string }{
		{"protokol", `no command or guide is called "protokol" (see pubsubd help --help)`},
		{"topics delte", `is called "delte"`},
		{"publish protocol", `is called "protocol"`},
	} {
		r := run(t, nil, append([]string{"help"}, strings.Fields(c.args)...)...)
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, c.says)
		require.Empty(t, r.stdout)
	}
	require.Contains(t, run(t, nil, "__complete", "help", "").stdout, "protocol\n")
	require.Contains(t, run(t, nil, "__complete", "help", "topics", "").stdout, "delete\n")
}

// withoutFlags returns the words of a command line that name the command.
func withoutFlags(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, "-") })
}

// wrote is what a process wrote on its standard error, in a file: what it wrote before
// it answered is there when the answer is. A pipe would need a goroutine that may lag.
type wrote struct{ *os.File }

func newWrote(t *testing.T) wrote {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return wrote{f}
}

func (w wrote) String() string {
	text, err := os.ReadFile(w.Name())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// A served is a daemon running as a process of its own.
type served struct {
	*testing.T
	cmd           *exec.Cmd
	stderr        wrote
	addresses     string // the file
	public, admin string
	tcp           string // host:port, if it listens there
}

func serveProcess(t *testing.T, args ...string) *served {
	t.Helper()
	return serveProcessIn(t, []string{}, args...)
}

// serveProcessIn is serveProcess with only the given environment.
func serveProcessIn(t *testing.T, env []string, args ...string) *served {
	t.Helper()
	s := startServe(t, exec.Command(binary), env, args...)
	s.waitReady()
	return s
}

// startServe starts a daemon by a command, and does not wait until it is ready.
func startServe(t *testing.T, cmd *exec.Cmd, env []string, args ...string) *served {
	t.Helper()
	s := &served{T: t, cmd: cmd, stderr: newWrote(t), addresses: filepath.Join(t.TempDir(), "addresses")}
	cmd.Args = append(cmd.Args, "serve", "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--addresses-file", s.addresses)
	cmd.Args = append(cmd.Args, args...)
	cmd.Env = env
	if cmd.Stderr == nil {
		cmd.Stderr = s.stderr.File
	}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return s
}

// waitReady waits until the daemon serves.
func (s *served) waitReady() {
	s.Helper()
	var text []byte
	require.Eventually(s, func() (ok bool) {
		var err error
		text, err = os.ReadFile(s.addresses)
		return err == nil
	}, patience, 5*time.Millisecond, s.stderr)
	var at map[string]string
	require.NoError(s, json.Unmarshal(text, &at))
	s.public, s.admin, s.tcp = "http://"+at["public"], "http://"+at["admin"], at["tcp"]
}

func (s *served) post(path, body string) string {
	s.Helper()
	resp, err := http.Post(s.public+path, "application/json", strings.NewReader(body))
	require.NoError(s, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	require.Less(s, resp.StatusCode, 300, string(text))
	return string(text)
}

func (s *served) signal(sig os.Signal) {
	s.Helper()
	require.NoError(s, s.cmd.Process.Signal(sig))
}

// exit waits for the process to end and returns its state.
func (s *served) exit() *os.ProcessState {
	s.Helper()
	_ = s.cmd.Wait() // its state says it all
	return s.cmd.ProcessState
}

func TestServePublishPollAndStop(t *testing.T) {
	s := serveProcess(t)
	var opened struct{ Session string }
	require.NoError(t, json.Unmarshal([]byte(s.post("/v1/sessions", `{"topics":["a"]}`)), &opened))
	s.post("/v1/topics/a/messages", `{"n":1}`)
	poll := s.public + "/v1/sessions/" + opened.Session + "/poll?ack="
	resp, err := http.Get(poll + "0")
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	resp.Body.Close()
	require.Contains(t, string(body), `"data":{"n":1}`)

	answer := make(chan int)
	go func() {
		resp, err := http.Get(poll + "1")
		if err != nil {
			answer <- 0
			return
		}
		resp.Body.Close()
		answer <- resp.StatusCode
	}()
	s.waitForMetric(`pubsubd_polls_parked{transport="longpoll"} 1`)
	s.signal(syscall.SIGTERM)
	require.Equal(t, http.StatusServiceUnavailable, <-answer, "the parked poll was answered")
	require.Zero(t, s.exit().ExitCode(), s.stderr)
	require.Contains(t, s.stderr.String(), `"drained"`)
	require.NotContains(t, s.stderr.String(), opened.Session)
}

// waitForMetric waits until /metrics has that line.
func (s *served) waitForMetric(line string) {
	s.Helper()
	require.Eventually(s, func() bool {
		resp, err := http.Get(s.admin + "/metrics")
		require.NoError(s, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(s, err)
		return strings.Contains(string(body), line+"\n")
	}, patience, 20*time.Millisecond, line)
}

// waitForLog waits until the log has the words. It is written a moment after what it tells.
func (s *served) waitForLog(words string) {
	s.Helper()
	require.Eventually(s, func() bool { return strings.Contains(s.stderr.String(), words) }, patience, 5*time.Millisecond, words)
}

// signalUntilGone signals until the process has ended. It drains a moment before a
// signal would end it.
func (s *served) signalUntilGone(sig os.Signal) {
	s.Helper()
	gone := make(chan struct{})
	go func() { defer close(gone); s.exit() }()
	for deadline := time.After(patience); ; {
		_ = s.cmd.Process.Signal(sig) // it may have ended
		select {
		case <-gone:
			return
		case <-deadline:
			require.Fail(s, "the process has not ended")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// A request that never ends holds the drain up for its window, unless a second
// signal comes.
func TestASecondSignalEndsItAtOnce(t *testing.T) {
	s := serveProcess(t, "--drain-window=1h")
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.public, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/topics/a/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
	continues := make([]byte, len("HTTP/1.1 100"))
	_, err = io.ReadFull(conn, continues)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 100", string(continues))
	s.signal(syscall.SIGTERM)
	require.Eventually(t, func() bool {
		resp, err := http.Get(s.admin + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		reason, _ := io.ReadAll(resp.Body)
		return resp.StatusCode == http.StatusServiceUnavailable && string(reason) == "draining\n"
	}, patience, 5*time.Millisecond)
	s.signalUntilGone(syscall.SIGTERM)
	status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.Equal(t, syscall.SIGTERM, status.Signal())
}
