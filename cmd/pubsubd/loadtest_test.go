package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// wantCarried requires that a load test carried every message as it should, and returns
// its result, given as JSON. A busy machine may make the figures the generator's, and
// bursts late.
func wantCarried(t *testing.T, r ran, text string) (result loadtest.Result) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &result), "%s\n%s", r.stdout, r.stderr)
	require.Empty(t, result.Verdict.Failed)
	for _, missed := range result.Verdict.Missed {
		require.Contains(t, missed, "bursts in time")
	}
	require.Equal(t, result.Verdict.ExitCode, r.code, "%s\n%s", r.stdout, r.stderr)
	return result
}

// written is what a command has written to a file.
func written(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// Each scenario, small, against a server that the command starts itself.
func TestLoadTestsStartTheirOwnServer(t *testing.T) {
	t.Parallel()
	sample := []string{"broadcast stateless", "broadcast events", "collab CBOR", "steady socket"} // each pattern, way and format
	for name, args := range map[string][]string{
		"broadcast":           {"broadcast", "--clients=20", "--period=300ms", "--bursts=3"},
		"broadcast stream":    {"broadcast", "--clients=20", "--period=300ms", "--bursts=3", "--mode=stream"},
		"broadcast stateless": {"broadcast", "--clients=20", "--period=300ms", "--bursts=3", "--mode=multiple", "--stateless"},
		"broadcast events":    {"broadcast", "--clients=20", "--period=300ms", "--bursts=3", "--transport=sse"},
		"broadcast socket":    {"broadcast", "--clients=20", "--period=300ms", "--bursts=3", "--transport=websocket", "--subscriptions=3"},
		"broadcast CBOR":      {"broadcast", "--clients=20", "--period=300ms", "--bursts=3", "--transport=stream", "--format=cbor"},
		"collab CBOR":         {"collab", "--topics=5", "--clients-per-topic=3", "--delay=20ms", "--rounds=3", "--format=cbor"},
		"steady socket": {"collab", "--pattern=steady", "--topics=5", "--period=100ms", "--warmup=100ms", "--duration=500ms",
			"--transport=websocket", "--format=cbor", "--publish-on-socket"},
		"collab": {"collab", "--topics=5", "--clients-per-topic=3", "--delay=20ms", "--rounds=3"},
		"steady": {"collab", "--pattern=steady", "--topics=5", "--period=100ms", "--warmup=100ms", "--duration=500ms"},
	} {
		if !exhaustive.On() && !slices.Contains(sample, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "result.json")
			r := run(t, nil, append([]string{"loadtest", "--json", file, "--settle=10ms"}, args...)...)
			result := wantCarried(t, r, written(t, file))
			require.Contains(t, r.stdout, "verdict")
			require.Contains(t, r.stderr, "started a server as process")
			require.NotContains(t, r.stderr, "\r", "plain lines where there is no terminal")
			require.Positive(t, result.Deliveries.Expected)
			require.Equal(t, result.Deliveries.Expected, result.Deliveries.Delivered)
			require.Zero(t, result.Deliveries.Duplicates+result.Deliveries.Disordered)
			require.Positive(t, result.Server.ResidentEndBytes)
			require.Positive(t, result.Server.BytesOut)
			require.Equal(t, "v0.0.0-test", result.Server.Build["version"])
		})
	}
}

// The reader of the table may leave, as head does. The result is kept, and so is the exit
// code.
func TestALoadTestEndsQuietlyWhenNobodyReads(t *testing.T) {
	reader, stdout, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	defer stdout.Close()
	file := filepath.Join(t.TempDir(), "result.json")
	cmd := exec.CommandContext(t.Context(), binary, "loadtest", "broadcast", "--clients=5", "--period=50ms", "--bursts=2", "--settle=0s", "--max-p99=1us", "--quiet", "--json", file)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{}, stdout, &stderr
	require.Error(t, cmd.Run(), "no latency is that low")
	require.NotContains(t, stderr.String(), "pipe")
	var result loadtest.Result
	require.NoError(t, json.Unmarshal([]byte(written(t, file)), &result), stderr.String())
	require.Equal(t, result.Verdict.ExitCode, cmd.ProcessState.ExitCode(), stderr.String())
}

func TestLoadTestsExitAsTheyFound(t *testing.T) {
	small := []string{"--clients=5", "--period=50ms", "--bursts=2", "--settle=0s"}
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"objective missed", append([]string{"broadcast", "--max-p99=1us"}, small...), loadtest.ExitMissed, "p99 of latency"},
		{"nobody there", append([]string{"broadcast", "--target=http://127.0.0.1:1"}, small...), loadtest.ExitFailed, "connect to 127.0.0.1:1: connection refused"},
		{"no such mode", []string{"broadcast", "--mode=fast"}, exitUsage, `--mode "fast": use single, batch, multiple, stream`},
		{"a mode of no poll", []string{"broadcast", "--mode=single", "--transport=sse"}, exitUsage, "--mode: works only with polls, not with --transport sse"},
		{"https", []string{"broadcast", "--target=https://127.0.0.1:1"}, exitUsage, "https cannot be measured yet"},
		{"no port", []string{"broadcast", "--target=localhost"}, exitUsage, `--target "localhost": write host:port or http://host:port`},
		{"no scheme", append([]string{"broadcast", "--target=127.0.0.1:1"}, small...), loadtest.ExitFailed, "connect to 127.0.0.1:1: connection refused"},
		{"no such port", []string{"broadcast", "--target=localhost:80800"}, exitUsage, `--target "localhost:80800"`},
		{"an admin listener without port", []string{"broadcast", "--target=127.0.0.1:1", "--admin=localhost"}, exitUsage, `--admin "localhost": write host:port or http://host:port`},
		{"an admin listener of no target", []string{"broadcast", "--admin=http://127.0.0.1:1"}, exitUsage, "--admin"},
		{"a process of no target", []string{"broadcast", "--server-pid=1"}, exitUsage, "--server-pid"},
		{"nowhere to write", []string{"broadcast", "--json=/nowhere/result.json"}, exitUsage, "--json"},
		{"more clients than there are numbers", []string{"collab", "--pattern=steady", "--topics=4294967296", "--clients-per-topic=4294967296"},
			exitUsage, "--topics"},
		{"no clients", []string{"broadcast", "--clients=0"}, exitUsage, "--clients"},
		{"no such pattern", []string{"collab", "--pattern=chaos"}, exitUsage, "--pattern"},
		{"a flag of the other pattern", []string{"collab", "--pattern=steady", "--rounds=3"}, exitUsage, "--rounds"},
		{"more clients than open files", []string{"broadcast", "--clients=100000000"}, loadtest.ExitFailed, "ulimit -n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, nil, append([]string{"loadtest"}, c.args...)...)
			require.Equal(t, c.code, r.code, "%s\n%s", r.stdout, r.stderr)
			require.Contains(t, r.stdout+r.stderr, c.says)
		})
	}
}

// An interrupted test says so everywhere, and judges nothing.
func TestAnInterruptedLoadTestHasFailed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "result.json")
	cmd, output := startLoadTest(t, "--bursts=10000", "--json="+file)
	said := make(chan string, 1)
	go func() {
		var all strings.Builder
		interrupted := false // a second signal would end it at once
		for lines := bufio.NewScanner(output); lines.Scan(); {
			all.WriteString(lines.Text() + "\n")
			if !interrupted && strings.HasPrefix(lines.Text(), "broadcast") {
				interrupted = true
				_ = cmd.Process.Signal(os.Interrupt)
			}
		}
		said <- all.String()
	}()
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, exitRunTime, exit.ExitCode())
	text := <-said
	require.Contains(t, text, "FAILED\n")
	require.Contains(t, text, "interrupted")
	require.NotContains(t, text, "MISSED")
	require.NotContains(t, text, "name it with --admin")
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	var result loadtest.Result
	require.NoError(t, json.Unmarshal(kept, &result))
	require.Equal(t, exitRunTime, result.Verdict.ExitCode)
	require.Empty(t, result.Verdict.Missed)
}

// A test that cannot begin leaves the last result as it was, and no empty file.
func TestAResultStaysUntilThereIsAnother(t *testing.T) {
	dir := t.TempDir()
	kept, none := filepath.Join(dir, "kept.json"), filepath.Join(dir, "none.json")
	require.NoError(t, os.WriteFile(kept, []byte("{}"), 0o600))
	for _, file := range []string{kept, none} {
		r := run(t, nil, "loadtest", "broadcast", "--clients=1", "--target=http://127.0.0.1:1", "--json", file)
		require.Equal(t, exitRunTime, r.code)
		require.Empty(t, r.stdout, "there is nothing to show")
	}
	text, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.Equal(t, "{}", string(text))
	require.NoFileExists(t, none)
}

// However the generator ends, the server it started does not stay.
func TestAStartedServerDoesNotOutliveItsLoadTest(t *testing.T) {
	for _, end := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		t.Run(end.String(), func(t *testing.T) { endLoadTest(t, end) })
	}
}

func endLoadTest(t *testing.T, end syscall.Signal) {
	t.Helper()
	cmd, stderr := startLoadTest(t)
	server := serverOf(t, stderr)
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	require.NoError(t, cmd.Process.Signal(end))
	_ = cmd.Wait() // its server is what matters here
	wantGone(t, server)
}

// `2>&1 | head -1`: whoever read has left, and the test goes on to its end.
func TestALoadTestNobodyReadsStopsItsServer(t *testing.T) {
	t.Parallel()
	table, unread, err := os.Pipe()
	require.NoError(t, err)
	defer unread.Close()
	require.NoError(t, table.Close())
	cmd, stderr := startLoadTestTo(t, unread, "--bursts=3", "--max-p99=1us")
	server := serverOf(t, stderr)
	require.NoError(t, stderr.Close())
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.NotEqual(t, exitRunTime, exit.ExitCode(), "that nobody reads the table is no failure")
	wantGone(t, server)
}

// startLoadTest starts a small one whose output goes to the returned pipe.
func startLoadTest(t *testing.T, args ...string) (*exec.Cmd, *os.File) {
	t.Helper()
	return startLoadTestTo(t, nil, args...)
}

// startLoadTestTo is startLoadTest with a place of its own for the table, if there is one.
func startLoadTestTo(t *testing.T, table *os.File, args ...string) (*exec.Cmd, *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer write.Close()
	cmd := exec.CommandContext(t.Context(), binary,
		append([]string{"loadtest", "broadcast", "--clients=5", "--period=100ms", "--settle=0s"}, args...)...)
	cmd.Stdout, cmd.Stderr = cmp.Or(table, write), write
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { read.Close() })
	return cmd, read
}

// serverOf returns the process that the load test says it has started.
func serverOf(t *testing.T, output io.Reader) int {
	t.Helper()
	var pid int
	_, err := fmt.Fscanf(output, "started a server as process %d at", &pid)
	require.NoError(t, err)
	return pid
}

func wantGone(t *testing.T, pid int) {
	t.Helper()
	gone := func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && strings.Contains(string(stat), ") Z ") {
			return true // ended; nobody has asked how
		}
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	require.Eventually(t, gone, patience, 10*time.Millisecond, "process %d is still there", pid)
}

// The load generator's lean connections see the same frames as the Go client, in
// every mode: messages of every form, and a gap.
func TestLeanConnectionsSeeWhatTheGoClientSees(t *testing.T) {
	s := serveProcess(t)
	for _, mode := range client.Modes() {
		for _, stateless := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stateless=%t", mode, stateless), func(t *testing.T) {
				topic := fmt.Sprintf("lean.%s.%t", mode, stateless)
				lean := s.subscribeLeanly(t, topic, mode, stateless)
				full := s.subscribeFully(t, topic, mode, stateless)
				want := s.publishAllForms(t, topic)
				require.Equal(t, want, full(len(want)), "the Go client")
				require.Equal(t, want, lean(len(want)), "the lean connection")
			})
		}
	}
}

// publishAllForms publishes messages of every form and returns what subscribers
// must see: position and payload.
func (s *served) publishAllForms(t *testing.T, topic string) []string {
	t.Helper()
	c, err := pubsub.New(s.public)
	require.NoError(t, err)
	defer c.Close()
	var want []string
	publish := func(mediaType, body, payload string, options ...pubsub.PublishOption) {
		p, err := c.Publish(t.Context(), topic, mediaType, []byte(body), options...)
		require.NoError(t, err)
		want = append(want, p.Position.String()+" "+payload)
	}
	same := func(mediaType, body string, options ...pubsub.PublishOption) {
		publish(mediaType, body, body, options...)
	}
	same("", `["one","two"]`)
	publish("", "{ \"n\" : 1.50 }", `{"n":1.50}`)
	same("", `"ü \u0000 \" \\ end"`)
	same("", `null`)
	same("text/plain", "plain")
	same("text/plain; charset=utf-8", "ü\n\"\\\x01")
	same("text/plain", "")
	same("image/png", "\x89PNG\x00\xff")
	same("", `1`, pubsub.WithKey(`key "quoted"`))
	same("", `"`+strings.Repeat("long ", 12_000)+`"`)
	return want
}

func (s *served) subscribeFully(t *testing.T, topic string, mode client.Mode, stateless bool) func(n int) []string {
	t.Helper()
	c, err := pubsub.New(s.public)
	require.NoError(t, err)
	options := []pubsub.SubscribeOption{pubsub.WithMode(pubsub.Mode(mode))}
	if stateless {
		options = append(options, pubsub.Stateless())
	}
	sub, err := c.Subscribe(t.Context(), []wire.Start{pubsub.FromNow(topic)}, options...)
	require.NoError(t, err)
	t.Cleanup(func() { sub.Close(); c.Close() })
	return func(n int) (got []string) {
		for range n {
			item, err := sub.Next(t.Context())
			require.NoError(t, err)
			require.Nil(t, item.Gap)
			got = append(got, item.Position().String()+" "+string(item.Message.Data))
		}
		return got
	}
}

// leanEvents notes what a lean subscriber is told.
type leanEvents struct {
	ready chan struct{}
	got   chan string
}

func (e *leanEvents) Ready(int, wire.Position) { close(e.ready) }
func (e *leanEvents) Message(_ int, f *client.Frame, _ time.Duration) error {
	e.got <- f.Position.String() + " " + string(f.Data)
	return nil
}
func (e *leanEvents) Gap(_ int, g *wire.Gap) { e.got <- "gap " + g.Position.String() }
func (e *leanEvents) Closed(int, error)      {}

func (s *served) subscribeLeanly(t *testing.T, topic string, mode client.Mode, stateless bool) func(n int) []string {
	t.Helper()
	target, err := url.Parse(s.public)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", target.Host)
	require.NoError(t, err)
	events := &leanEvents{ready: make(chan struct{}), got: make(chan string, 100)}
	ended := make(chan error, 1)
	go func() {
		ended <- drive(conn, client.NewKit(target.Host, mode, stateless).NewSubscriber(0, topic, events))
	}()
	t.Cleanup(func() {
		conn.Close()
		require.ErrorIs(t, <-ended, net.ErrClosed)
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-events.ready:
	case <-ctx.Done():
		require.Fail(t, "the lean subscriber is not ready")
	}
	return func(n int) (got []string) {
		for range n {
			select {
			case word := <-events.got:
				got = append(got, word)
			case <-time.After(patience):
				return got
			}
		}
		return got
	}
}

// drive is the simplest loop for one machine.
func drive(conn net.Conn, m *client.Subscriber) error {
	if _, err := conn.Write(m.Connected(0)); err != nil {
		return err
	}
	buffer := make([]byte, 1000) // small, so that frames come in pieces
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		request, err := m.Receive(0, buffer[:n])
		if err != nil {
			return err
		}
		if _, err := conn.Write(request); err != nil {
			return err
		}
	}
}

// The guide says which load tests draw their figures, and how.
func TestTheGuideSaysWhichLoadTestsDraw(t *testing.T) {
	_, table, found := strings.Cut(written(t, "../../loadtest/README.md"), "These commands also draw them:\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n## ")
	all := loadtestCommand()
	for _, c := range append(all.Commands(), all) {
		named := regexp.MustCompile("(?m)^\\| .*`(loadtest )?" + c.Name() + "[ `].*$").FindString(table)
		cells := append(strings.Split(named, " | "), "–", "–")
		for i, flag := range []string{"svg", "html"} {
			require.Equal(t, c.Flags().Lookup(flag) != nil, !strings.HasPrefix(cells[1+i], "–"), "%s --%s", c.CommandPath(), flag)
		}
	}
}
