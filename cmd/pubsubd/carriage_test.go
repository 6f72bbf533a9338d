package main

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The same comes over every transport and in every format, over a restart too.
func TestSubscribeOverEveryTransport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, over string }{
		{"--transport=longpoll", "longpoll"},
		{"--transport=longpoll --format=cbor", "longpoll"},
		{"--transport=stream", "stream"},
		{"--transport=stream --format=cbor", "stream"},
		{"--transport=sse", "sse"},
		{"--transport=tcp --tcp=TCP", "tcp"},
		{"--transport=websocket", "websocket"},
		{"--transport=websocket --format=cbor", "websocket"},
		{"--transport=auto --format=json", "websocket"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			s := serveProcess(t, "--listen-tcp=127.0.0.1:0")
			s.do("publish", "a", `{"n":[1,2.5]}`)
			s.do("publish", "a", "two", "--type=text/plain")
			sub := subscribe(s, append(strings.Fields(strings.Replace(c.args, "TCP", s.tcp, 1)), "a@oldest", "b.*")...)
			require.Regexp(t, `  {"n":\[1,2\.5\]}$`, sub.line())
			require.Regexp(t, `  two$`, sub.line())
			s.do("publish", "b.c", "3")
			require.Regexp(t, `^b\.c@\w+:1 .*  3$`, sub.line())
			s.waitForMetric(`pubsubd_frames_delivered_total{transport="` + c.over + `"} 3`)

			s.signal(syscall.SIGINT)
			require.Zero(t, s.exit().ExitCode())
			again := serveProcess(t, "--listen-public", strings.TrimPrefix(s.public, "http://"), "--listen-tcp", s.tcp)
			again.do("publish", "a", "4")
			require.Regexp(t, `  4$`, sub.line())
			require.NoError(t, sub.cmd.Process.Signal(syscall.SIGTERM))
			code, said := sub.exit()
			require.Zero(t, code, said)
		})
	}
}

// Beside make run, a subscriber over TCP must not meet the server of the pages.
func TestThePagesLeaveTheUsualTCPPortFree(t *testing.T) {
	for file, says := range map[string]string{"../../Makefile": "PAGES_ADDRESS ?= 127.0.0.1:", "../../deploy/examples/main.go": `flag.String("listen", "127.0.0.1:`} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, port, found := strings.Cut(string(text), says)
		require.True(t, found, file)
		require.NotEqual(t, usualTCPPort, port[:len(usualTCPPort)], file)
	}
}

// Whoever says nothing of the TCP port finds it where serve has it, or usually has it.
func TestWhereTheTCPPortIs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	asked := make(chan string, 8)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				close(asked)
				return
			}
			b := make([]byte, 64)
			n, _ := conn.Read(b)
			asked <- string(b[:n])
			conn.Close()
		}
	}()
	at := listener.Addr().String()
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	for _, c := range []struct {
		env  []string
		args []string
	}{
		{nil, []string{"--tcp", at}},
		{[]string{listenTCPEnv + "=:" + port}, nil},
	} {
		cmd := exec.CommandContext(t.Context(), binary, append([]string{"subscribe", "a@oldest", "--transport=tcp"}, c.args...)...)
		cmd.Env = c.env
		require.NoError(t, cmd.Start())
		select {
		case said := <-asked:
			require.Contains(t, said, "a@oldest")
		case <-time.After(patience):
			require.Fail(t, "nobody has asked")
		}
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	}
	listener.Close()
	for range asked {
		continue
	}
	require.Equal(t, "h:8082", (&carriage{}).port("h"))
	r := run(t, nil, "subscribe", "a", "--transport=tcp", "--tcp", at, "--timeout=1s")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "connection refused: does the daemon listen there (listen.tcp)? --tcp or PUBSUBD_LISTEN_TCP sets another address")
}
