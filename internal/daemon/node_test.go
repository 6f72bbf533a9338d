package daemon

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// nodeFolder has third-party clients. Its lockfile pins their versions.
const nodeFolder = "testdata/node"

// runNode runs a script until the test ends and returns its output, line by line. Without
// Node it skips the test, or fails it in CI.
func runNode(t *testing.T, script string, arguments ...string) <-chan []byte {
	t.Helper()
	path, err := exec.LookPath("node")
	if err == nil {
		_, err = os.Stat(nodeFolder + "/node_modules")
	}
	if err != nil {
		const remedy = "install nodejs and npm, and run npm ci in internal/daemon/" + nodeFolder
		if os.Getenv("CI") != "" {
			t.Fatalf("CI must have what this test needs: %v: %s", err, remedy)
		}
		t.Skipf("%v: %s", err, remedy)
	}
	command := exec.CommandContext(t.Context(), path, append([]string{script}, arguments...)...)
	command.Dir, command.Stderr = nodeFolder, os.Stderr
	input, err := command.StdinPipe()
	require.NoError(t, err)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	lines := make(chan []byte, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(output); s.Scan(); {
			lines <- append([]byte(nil), s.Bytes()...)
		}
	}()
	t.Cleanup(func() {
		_ = input.Close()
		for range lines { // until the script has ended
		}
		_ = command.Wait()
	})
	return lines
}

// A line forwards connections to a daemon. It can cut them and switch to another daemon.
type line struct {
	net.Listener
	running sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	to    string     // the daemon's address; empty: no daemon is reachable
	conns []net.Conn
}

func newLine(t *testing.T) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &line{Listener: l}
	r.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.running.Go(func() { r.pass(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.passTo("")
		r.running.Wait()
	})
	return r
}

// pass forwards one connection until either side ends it.
func (r *line) pass(c net.Conn) {
	defer c.Close()
	d, err := r.connect(c)
	if err != nil {
		return
	}
	defer d.Close()
	r.running.Go(func() {
		_, _ = io.Copy(d, c)
		_ = d.Close()
	})
	_, _ = io.Copy(c, d)
}

// connect opens the connection to the daemon for c.
func (r *line) connect(c net.Conn) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to == "" {
		return nil, net.ErrClosed
	}
	d, err := net.Dial("tcp", r.to)
	if err == nil {
		r.conns = append(r.conns, c, d)
	}
	return d, err
}

// passTo cuts all connections. New connections go to address.
func (r *line) passTo(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.to, r.conns = address, nil
}

// within bounds the wait for one line of output.
const within = 30 * time.Second

// nextLine decodes the next line into v.
func nextLine(t *testing.T, lines <-chan []byte, v any) {
	t.Helper()
	select {
	case line, ok := <-lines:
		require.True(t, ok, "the script has ended")
		require.NoError(t, json.Unmarshal(line, v), "%s", line)
	case <-time.After(within):
		require.FailNow(t, "nothing is printed")
	}
}
