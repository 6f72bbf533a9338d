package main

import (
	"bufio"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A subscriber is a running pubsubd subscribe.
type subscriber struct {
	*testing.T
	cmd    *exec.Cmd
	stdout io.ReadCloser
	lines  *bufio.Reader
	stderr wrote
}

func subscribe(s *served, args ...string) *subscriber {
	s.Helper()
	sub := &subscriber{T: s.T, cmd: exec.Command(binary, append([]string{"subscribe", "--server", s.public}, args...)...), stderr: newWrote(s.T)}
	sub.cmd.Env, sub.cmd.Stderr = []string{}, sub.stderr.File
	var err error
	sub.stdout, err = sub.cmd.StdoutPipe()
	require.NoError(s, err)
	sub.lines = bufio.NewReader(sub.stdout)
	require.NoError(s, sub.cmd.Start())
	s.Cleanup(func() { _ = sub.cmd.Process.Kill() })
	return sub
}

func (s *subscriber) line() string {
	s.Helper()
	text, err := s.lines.ReadString('\n')
	require.NoError(s, err, s.stderr)
	return strings.TrimSuffix(text, "\n")
}

// exit waits for the end and returns its code and what was said on standard error.
func (s *subscriber) exit() (code int, said string) {
	s.Helper()
	_, _ = io.Copy(io.Discard, s.lines)
	_ = s.cmd.Wait() // its state says it all
	return s.cmd.ProcessState.ExitCode(), s.stderr.String()
}

func TestSubscribePrintsWhatComesUntilASignal(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			s := serveProcess(t)
			s.do("publish", "a", "1")
			sub := subscribe(s, "a@oldest", "b")
			require.Regexp(t, `^a@\w+:1  \d\d:\d\d:\d\d\.\d{3}  1$`, sub.line())
			s.do("publish", "b", "two\033[2Jthree", "--type=text/plain", "--key=k\n")
			require.Regexp(t, `^b@\w+:1  \S+  key=k\\n  two\\x1b\[2Jthree$`, sub.line())
			s.do("publish", "b", "1", "--type=image/png")
			require.Regexp(t, `^b@\w+:2  \S+  \(image/png, 1 bytes\)$`, sub.line())
			require.NoError(t, sub.cmd.Process.Signal(sig))
			code, said := sub.exit()
			require.Zero(t, code, said)
			require.Regexp(t, `pubsubd: to resume from here: a@\w+:1 b@\w+:2\n$`, said)
			s.waitForMetric("pubsubd_sessions 0") // it has said good-bye
		})
	}
}

func TestSubscribeGoesOnFromThePositionsThatItTold(t *testing.T) {
	s := serveProcess(t)
	s.do("publish", "a", "1")
	s.do("publish", "a", "2")
	s.do("publish", "b", "3")
	r := s.do("subscribe", "a", "b", "--from=oldest", "--count=1", "--json")
	require.Contains(t, r.stdout, `"data":`)
	_, told, ok := strings.Cut(strings.TrimSuffix(r.stderr, "\n"), "resume from here: ")
	require.True(t, ok, r.stderr)
	r = s.do(append([]string{"subscribe", "--count=2", "--json"}, strings.Fields(told)...)...)
	got := append([]string{r.stdout}, strings.Fields(told)...)
	require.Contains(t, r.stdout, `"data":2`, got)
	require.Equal(t, 2, strings.Count(r.stdout, "\n"))

	position := strings.Fields(told)[0]
	r = s.do("subscribe", "a", "--from", position, "--count=1", "--json")
	require.Contains(t, r.stdout, `"data":2`)
}

func TestSubscribeTakesPatterns(t *testing.T) {
	s := serveProcess(t)
	s.do("publish", "chat.a", "1")
	r := s.do("subscribe", "chat.*", "--from=oldest", "--count=1")
	require.Regexp(t, `^chat\.a@\w+:1  \S+  1\n$`, r.stdout)
	_, told, ok := strings.Cut(strings.TrimSuffix(r.stderr, "\n"), "resume from here: ")
	require.True(t, ok, r.stderr)
	require.Regexp(t, `^'chat\.\*@\w+:0' chat\.a@\w+:1$`, told, "as a shell takes them")
	s.do("publish", "chat.b", "2")
	r = s.do(append([]string{"subscribe", "--count=1"}, strings.Fields(strings.ReplaceAll(told, "'", ""))...)...)
	require.Regexp(t, `^chat\.b@\w+:1  \S+  2\n$`, r.stdout)
}

func TestSubscribeTellsGaps(t *testing.T) {
	s := serveProcess(t)
	s.do("publish", "a", "1")
	r := s.do("subscribe", "a@k3:17", "--count=1")
	require.Contains(t, r.stderr, "gap (restarted): the server restarted; messages after a@k3:17 may be missing\n")
	require.Equal(t, 1, strings.Count(r.stdout, "\n"))
	r = s.do("subscribe", "a@k3:17", "--count=1", "--json")
	frames := wire.NewDecoder(strings.NewReader(r.stdout))
	first, err := frames.Next()
	require.NoError(t, err)
	require.Equal(t, wire.GapRestarted, first.Gap.Reason)
	second, err := frames.Next()
	require.NoError(t, err)
	require.Equal(t, "1", string(second.Message.Data))
	require.NotContains(t, r.stderr, "gap")
}

func TestSubscribeEndsAfterATime(t *testing.T) {
	s := serveProcess(t)
	s.do("publish", "a", "1")
	r := s.forLonger("resume from here: a@", "subscribe", "a")
	require.Zero(t, r.code, r.stderr)
	r = s.forLonger("1 of 2 messages", "subscribe", "a", "--from=oldest", "--count=2")
	require.Equal(t, exitRunTime, r.code, "the second message did not come")
}

func TestSubscribeSaysWhereItIsConnected(t *testing.T) {
	s := serveProcess(t)
	s.do("publish", "a", "1")
	for transport, want := range map[string]string{"auto": "websocket", "longpoll": "longpoll", "sse": "sse"} {
		r := s.do("subscribe", "a@oldest", "--count=1", "--transport", transport)
		require.Regexp(t, `^pubsubd: subscribed at `+s.public+` over `+want+`, after a@\w+:0\n`, r.stderr)
	}
	typed := strings.TrimPrefix(s.public, "http://")
	r := run(t, nil, "subscribe", "a", "b@oldest", "--server", typed, "--timeout=1m", "--count=1", "--from=oldest")
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `^pubsubd: subscribed at `+typed+` over websocket, after a@\w+:0 b@\w+:0\n`, r.stderr)
}

// A daemon that is not there, and one that accepts connections and says nothing.
func TestSubscribeFailsIfItIsNeverConnected(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	for _, at := range []string{"127.0.0.1:1", silent.Addr().String()} {
		r := run(t, nil, "subscribe", "a", "--timeout=300ms", "--server", at)
		require.Equal(t, exitRunTime, r.code, at)
		require.Contains(t, r.stderr, "no connection within --timeout")
		require.NotContains(t, r.stderr, "subscribed at")
	}
}

// forLonger runs a command with ever longer time-outs until one is enough for it to
// come to say the words.
func (s *served) forLonger(words string, args ...string) (r ran) {
	s.Helper()
	for timeout := 100 * time.Millisecond; timeout < patience; timeout *= 2 {
		r = run(s.T, nil, append(args, "--server", s.public, "--timeout", timeout.String())...)
		if strings.Contains(r.stderr, words) {
			return r
		}
	}
	require.Contains(s, r.stderr, words)
	return r
}

func TestSubscribeEndsQuietlyWhenNobodyReads(t *testing.T) {
	s := serveProcess(t)
	s.do("publish", "a", "1")
	sub := subscribe(s, "a@oldest")
	sub.line()
	require.NoError(t, sub.stdout.Close())
	s.do("publish", "a", "2")
	_ = sub.cmd.Wait()
	require.Zero(t, sub.cmd.ProcessState.ExitCode(), sub.cmd.ProcessState)
	require.Regexp(t, `^pubsubd: subscribed at \S+ over websocket, after a@\w+:0\n$`, sub.stderr.String())
	s.waitForMetric("pubsubd_sessions 0")
}

// The daemon is gone and comes back on the same port: the subscriber says so, is
// told of the new epoch by a gap, and goes on.
func TestSubscribeGoesOnOverARestart(t *testing.T) {
	t.Parallel()
	s := serveProcess(t)
	sub := subscribe(s, "a@oldest")
	s.do("publish", "a", "1")
	sub.line()
	s.signal(syscall.SIGINT)
	require.Zero(t, s.exit().ExitCode())
	again := serveProcess(t, "--listen-public", strings.TrimPrefix(s.public, "http://"))
	again.do("publish", "a", "2")
	require.Regexp(t, `  2$`, sub.line())
	require.NoError(t, sub.cmd.Process.Signal(syscall.SIGTERM))
	code, said := sub.exit()
	require.Zero(t, code, said)
	require.Contains(t, said, "retrying in")
	require.Contains(t, said, "gap (restarted)")
}

func TestSubscribeCommandLinesThatCannotBeObeyed(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no topic":        {nil, "TOPIC is missing in: pubsubd subscribe TOPIC..."},
		"no name":         {[]string{"a..b"}, "empty segment"},
		"no start":        {[]string{"a", "--from=newest"}, "or oldest, or newest-50"},
		"too many":        {[]string{"a", "--from=newest-1001"}, "a number from 1 to 1000"},
		"none of a topic": {[]string{"a@newest-0"}, "a number from 1 to 1000"},
		"other topic":     {[]string{"a", "--from=b@k3:1"}, "no topic b"},
		"whose echo":      {[]string{"a", "--no-echo"}, "--client"},
		"no client":       {[]string{"a", "--client=a b", "--no-echo"}, "letters"},
		"count below 0":   {[]string{"a", "--count=-1"}, "--count"},
		"timeout below 0": {[]string{"a", "--timeout=-1s"}, "--timeout"},
		"no URL":          {[]string{"a", "--server=here"}, "http://127.0.0.1:8080"},
		"no transport":    {[]string{"a", "--transport=pigeon"}, "auto, longpoll, stream"},
		"no format":       {[]string{"a", "--format=xml"}, "use json, cbor"},
		"TCP in JSON":     {[]string{"a", "--transport=tcp", "--format=json"}, "only the other"},
		"events in CBOR":  {[]string{"a", "--transport=sse", "--format=cbor"}, "only the other"},
		"TCP for nothing": {[]string{"a", "--tcp=h:1"}, "--transport tcp"},
		"no TCP port":     {[]string{"a", "--transport=tcp", "--tcp=h"}, "missing port"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, nil, append([]string{"subscribe"}, c.args...)...)
			require.Equal(t, exitUsage, r.code, r.stderr)
			require.Contains(t, r.stderr, c.says)
		})
	}
}

func TestSubscribeFailsAtOnceOnARefusal(t *testing.T) {
	s := serveProcess(t, "--limits-subscriptions=1")
	r := run(t, nil, "subscribe", "a", "b", "--server", s.public)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "too_many_subscriptions")
}

func TestSubscribeLeavesOutItsOwn(t *testing.T) {
	s := serveProcess(t)
	for _, client := range []string{"me", "you", "me", "you"} {
		s.do("publish", "a", `"`+client+`"`, "--client", client)
	}
	r := s.do("subscribe", "a@oldest", "--client=me", "--no-echo", "--count=2", "--json")
	require.Equal(t, 2, strings.Count(r.stdout, `"data":"you"`), r.stdout)
	require.NotContains(t, r.stdout, `"me"`)
	r = s.do("subscribe", "a@oldest", "--client=me", "--count=2", "--json")
	require.Contains(t, r.stdout, `"me"`)
}
