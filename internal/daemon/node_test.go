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

// nodeFolder has clients that others wrote, at the versions that its lockfile pins.
const nodeFolder = "testdata/node"

// runNode runs a script there until the test ends, and returns what it prints, line by
// line. Where nobody asked for Node the test is skipped.
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
		for range lines { // until it has ended
		}
		_ = command.Wait()
	})
	return lines
}

// A line passes connections on to a daemon, which may be another one later, and can
// cut them.
type line struct {
	net.Listener
	running sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	to    string     // empty: nobody is there
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

// pass passes one connection on, until either side ends it.
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

// connect connects c to the daemon.
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

// passTo cuts all connections. Those to come go elsewhere.
func (r *line) passTo(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.to, r.conns = address, nil
}

// within is how long what Node is to print is waited for.
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
