package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// runReading is run with a standard input.
func runReading(t *testing.T, in string, args ...string) ran {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{}, strings.NewReader(in), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// do runs a command against the daemon, which must do it.
func (s *served) do(args ...string) ran {
	s.Helper()
	r := run(s.T, []string{serverEnv + "=" + s.public, adminEnv + "=" + s.admin}, args...)
	require.Zero(s, r.code, "%v: %s", args, r.stderr)
	return r
}

// held returns what a topic holds, as frames.
func (s *served) held(topic string) string {
	s.Helper()
	resp, err := http.Get(s.public + "/v1/topics/" + topic + "/messages?limit=1000")
	require.NoError(s, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	return string(text)
}

func TestPublishTakesDataFromTheCommandLineOrStandardInput(t *testing.T) {
	s := serveProcess(t)
	server := "--server=" + s.public
	r := s.do("publish", "a", `{"n": 1}`)
	require.Regexp(t, `^a@[a-z0-9]+:1\n$`, r.stdout)
	require.Empty(t, r.stderr)
	s.do("publish", "a", "two", "--type", "text/plain", "--key", "k", "--ttl", "1h")
	for in, args := range map[string][]string{
		"[3]":          {"publish", "a", "-", server},
		"four\nlines ": {"publish", "a", "--type=text/plain", server},
	} {
		r := runReading(t, in, args...)
		require.Zero(t, r.code, r.stderr)
	}
	held := s.held("a")
	require.Contains(t, held, `"data":{"n":1}}`)
	require.Contains(t, held, `"key":"k","type":"text/plain","text":"two"}`)
	require.Contains(t, held, `"data":[3]}`)
	require.Contains(t, held, `"text":"four\nlines "}`)
}

func TestPublishLinesPublishesEachInOrder(t *testing.T) {
	s := serveProcess(t)
	r := runReading(t, "\ufeff1\n\n2\r\n3", "publish", "a", "--lines", "--server", s.public)
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, 3, strings.Count(r.stdout, "\n"))
	require.Contains(t, r.stderr, "messages published: 3\n")
	held := s.held("a")
	require.Regexp(t, `(?s)"data":1}.*"data":2}.*"data":3}`, held)

	r = runReading(t, "4\nfive\n6\n", "publish", "a", "--lines", "--server", s.public)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "line 2: ")
	require.Contains(t, r.stderr, "--type text/plain")
	require.Contains(t, r.stderr, "messages published: 1\n")
	require.NotContains(t, s.held("a"), `"data":6`, "nothing after the line that failed")

	r = runReading(t, "7\n"+strings.Repeat("x", maxDataBytes+1), "publish", "a", "--lines", "--server", s.public)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "line 2 must have at most 8388608 bytes")

	r = runReading(t, "\ufeffseven\r\n\n\ufeffeight", "publish", "text", "--lines", "--type=text/plain", "--server", s.public)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, s.held("text"), `"text":"seven"`, "without the byte order mark and the end of the line")
	require.Contains(t, s.held("text"), "\"text\":\"\ufeffeight\"")
	require.Contains(t, s.held("text"), `"text":""`, "an empty line is a text, too")
}

// A signal finds the command while it waits for the next line.
func TestPublishLinesSaysHowManyWhenItIsInterrupted(t *testing.T) {
	s := serveProcess(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, sig := range endings() {
		cmd := exec.CommandContext(ctx, binary, "publish", "a", "--lines", "--server", s.public)
		var stderr bytes.Buffer
		cmd.Env, cmd.Stderr = []string{}, &stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = io.WriteString(in, "1\n\n2\n")
		require.NoError(t, err)
		printed := bufio.NewScanner(out)
		for range 2 {
			require.True(t, printed.Scan(), "a position")
		}
		require.NoError(t, cmd.Process.Signal(sig))
		require.False(t, printed.Scan(), printed.Text())
		_ = cmd.Wait() // its state says it all
		require.Equal(t, exitRunTime, cmd.ProcessState.ExitCode(), "%v", sig)
		require.Equal(t, "pubsubd: messages published: 2\npubsubd: interrupted: line 4 and the lines after it are not published\n", stderr.String())
	}
}

// The reader of the positions leaves, as head does.
func TestPublishLinesEndsQuietlyWhenNobodyReads(t *testing.T) {
	s := serveProcess(t)
	reader, stdout, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	defer stdout.Close()
	cmd := exec.CommandContext(t.Context(), binary, "publish", "a", "--lines", "--server", s.public)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{}, strings.NewReader("1\n2\n"), stdout, &stderr
	require.NoError(t, cmd.Run())
	require.Equal(t, "pubsubd: messages published: 1\n", stderr.String(), "the first was published")
}

func TestPublishCommandLinesThatCannotBeObeyed(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no topic":          {nil, "TOPIC is missing in: pubsubd publish TOPIC [DATA|-] (see pubsubd publish --help)"},
		"too much":          {[]string{"a", "closing", "bell"}, `"bell" is one argument too many for: pubsubd publish TOPIC [DATA|-]; put quotes around arguments with spaces (see`},
		"not JSON":          {[]string{"a", "closing bell"}, "--type text/plain"},
		"no topic's name":   {[]string{"a..b", "1"}, "empty segment"},
		"no type":           {[]string{"a", "1", "--type=te xt"}, "text/plain"},
		"half of a type":    {[]string{"a", "1", "--type=json"}, "text/plain"},
		"no client":         {[]string{"a", "1", "--client=a b"}, "letters"},
		"no key":            {[]string{"a", "1", "--idempotency-key=\n"}, "ASCII"},
		"no whole seconds":  {[]string{"a", "1", "--ttl=1500ms"}, "30s"},
		"data beside lines": {[]string{"a", "1", "--lines"}, "omit DATA"},
		"no data":           {[]string{"a"}, "Ctrl-D"},
		"no URL":            {[]string{"a", "1", "--server=localhost"}, "http://127.0.0.1:8080"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, nil, append([]string{"publish"}, c.args...)...)
			require.Equal(t, exitUsage, r.code, r.stderr)
			require.Contains(t, r.stderr, c.says)
			require.Empty(t, r.stdout)
		})
	}
}

func TestPublishSaysWhatToDoWhenItFails(t *testing.T) {
	r := run(t, nil, "publish", "a", "1", "--server=http://127.0.0.1:1", "--timeout=300ms")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "connection refused; retrying in ")
	require.Contains(t, r.stderr, "PUBSUBD_SERVER")
	r = run(t, nil, "publish", "a", "1", "--server=http://ann:secret@127.0.0.1:1")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, "has a user name or a password")
	require.NotContains(t, r.stderr, "secret")
	cut := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer cut.Close()
	r = run(t, nil, "publish", "a", "1", "--server", cut.URL)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "the message may have been published; with --idempotency-key the command retries")

	s := serveProcess(t, "--message-bytes=10")
	r = run(t, nil, "publish", "a", `"more than ten bytes"`, "--server", s.public)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "message_too_large")
	r = run(t, []string{serverEnv + "=nowhere"}, "publish", "a", "1")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, serverEnv)
	r = run(t, []string{serverEnv + "=nowhere"}, "publish", "a", "1", "--server", s.public)
	require.Zero(t, r.code, "the flag counts before the environment")

	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer silent.Close()
	r = run(t, nil, "publish", "a", "1", "--timeout=50ms", "--server", silent.URL)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "published or not")
}

// The daemon is away when the command begins.
func TestPublishOutlastsARestart(t *testing.T) {
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := reserved.Addr().String()
	require.NoError(t, reserved.Close())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "publish", "a", "1", "--timeout", patience.String(), "--server=http://"+at)
	var stdout bytes.Buffer
	cmd.Env, cmd.Stdout = []string{}, &stdout
	notes, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	note, err := bufio.NewReader(notes).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, note, "retrying in ")
	again, err := net.Listen("tcp", at)
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(&recorder{})
	server.Listener.Close()
	server.Listener = again
	server.Start()
	defer server.Close()
	require.NoError(t, cmd.Wait())
	require.Equal(t, "a@k3:1\n", stdout.String())
}

func TestPublishWithAKeyMayBeTriedAgain(t *testing.T) {
	s := serveProcess(t)
	once := s.do("publish", "a", "1", "--idempotency-key=k").stdout
	require.Equal(t, once, s.do("publish", "a", "1", "--idempotency-key=k").stdout)
	r := run(t, nil, "publish", "a", "2", "--idempotency-key=k", "--server", s.public)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "idempotency_mismatch")
	lines := []string{"publish", "b", "--lines", "--idempotency-key=k", "--server", s.public}
	require.Equal(t, runReading(t, "1\n2\n", lines...).stdout, runReading(t, "1\n2\n", lines...).stdout)
	require.Equal(t, 2, strings.Count(s.held("b"), `"data"`))
}

// A recorder is a server that answers every publish, and keeps what was asked.
type recorder struct {
	mu       sync.Mutex
	requests []*http.Request
}

func (s *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	_, _ = io.WriteString(w, `{"position":"a@k3:1","time":1}`)
}

func TestPublishSaysWhoAndWhichItIs(t *testing.T) {
	var daemon recorder
	server := httptest.NewServer(&daemon)
	defer server.Close()
	r := run(t, nil, "publish", "a", "1", "--client=me", "--key=k", "--ttl=30s", "--idempotency-key=once", "--server", server.URL)
	require.Zero(t, r.code, r.stderr)
	r = runReading(t, "1\n\n2\n", "publish", "a", "--lines", "--idempotency-key=all", "--server", server.URL)
	require.Zero(t, r.code, r.stderr)
	s := run(t, nil, "publish", "a", "1", "--server", server.URL+"/below")
	require.Zero(t, s.code, s.stderr)

	keys := []string{}
	for _, r := range daemon.requests {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
	}
	require.Equal(t, []string{`"once"`, `"all:1"`, `"all:3"`, ""}, keys)
	require.Equal(t, "client=me&key=k&ttl=30", daemon.requests[0].URL.RawQuery)
	require.Equal(t, "/below/v1/topics/a/messages", daemon.requests[3].URL.Path)
	require.Equal(t, "application/json", daemon.requests[0].Header.Get("Content-Type"))
}
