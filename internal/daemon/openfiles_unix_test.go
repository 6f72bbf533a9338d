//go:build unix

package daemon

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// fewFiles names an environment variable. It tells a test process to run a daemon with
// few files, and where to write its addresses.
const fewFiles = "PUBSUBD_TEST_FEW_FILES"

// few is how many files that daemon may open.
const few = 64

// The daemon's limit of connections is higher than its limit of open files. It refuses
// excess connections at low cost. Once some have closed, it accepts new ones.
func TestADaemonWithoutFilesTurnsConnectionsAway(t *testing.T) {
	if path := os.Getenv(fewFiles); path != "" {
		serveWithFewFiles(t, path)
		return
	}
	d := startWithFewFiles(t)
	const cpu = "process_cpu_seconds_total"
	used := d.metric(cpu) // this connection stays open: later, no other can be opened
	var held []net.Conn
	for range 4 * few {
		if conn, err := net.Dial("tcp", d.PublicAddr()); err == nil {
			held = append(held, conn)
		}
	}
	told := map[net.Conn]bool{}
	for begun := time.Now(); len(told) <= 2*few && time.Since(begun) < aMinute; {
		for _, conn := range held {
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
			if n, _ := conn.Read(make([]byte, 12)); n == 12 {
				told[conn] = true
			}
		}
	}
	require.Greater(t, len(told), 2*few, "who is turned away is told")
	time.Sleep(1500 * time.Millisecond) // a listener that spins would use as much CPU time
	for _, conn := range held[few/2:] {
		conn.Close()
	}
	require.Eventually(t, func() bool {
		resp, err := d.client.Get("http://" + d.PublicAddr() + "/v1/topics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, surely, 10*time.Millisecond, "there is room again")
	require.GreaterOrEqual(t, d.endings(metrics.Refused), len(told))
	require.Positive(t, d.metric(`pubsubd_limited_total{limit="open_files"}`))
	require.Less(t, d.metric(cpu)-used, 1.0)
	for _, conn := range held {
		conn.Close()
	}
}

// startWithFewFiles starts that daemon in a process of its own.
func startWithFewFiles(t *testing.T) *running {
	t.Helper()
	path := filepath.Join(t.TempDir(), "addresses")
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=300s")
	child.Env = append(os.Environ(), fewFiles+"="+path)
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	said := &strings.Builder{}
	child.Stdout, child.Stderr = said, said
	require.NoError(t, child.Start())
	t.Cleanup(func() {
		stdin.Close()
		require.NoError(t, child.Wait(), "%s", said)
	})
	var at addresses
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(path)
		return err == nil && json.Unmarshal(text, &at) == nil
	}, aMinute, time.Millisecond)
	d := &running{T: t, elsewhere: &at, client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(d.client.CloseIdleConnections)
	return d
}

// serveWithFewFiles runs that daemon until its standard input ends.
func serveWithFewFiles(t *testing.T, path string) {
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: few, Max: few}))
	d := startWith(t, func(c *config.Config) {
		c.AddressesFile, c.Limit.Connections = path+".begun", 10*few
	}, func(d *Daemon) { d.metrics.GatherProcess() })
	require.NoError(t, os.Rename(path+".begun", path)) // from now on this test opens no file
	require.Len(t, d.logged.FilterMessageSnippet("needs more open files").All(), 1)
	_, err := io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
}
