// Package checks tries what in deploy is for other programs: rules for Prometheus, a
// dashboard for Grafana, a chart for Helm; and what the daemon speaks by a program that
// knows better: HTTP/2 by h2spec. It is a module of its own, since these programs are
// large, and the daemon's should not know them. It sees the daemon as they do: as a
// binary with its listeners.
package checks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// deploy is what is tried.
const deploy = "../"

// binary builds the daemon once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pubsubd")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "pubsubd")
	build := exec.Command("go", "build", "-o", path, "./cmd/pubsubd")
	build.Dir = filepath.Join(deploy, "..")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// A daemon is a running one.
type daemon struct {
	*testing.T
	public, admin string
}

// serve starts a daemon on free ports, with more arguments, until the test ends.
func serve(t *testing.T, arguments ...string) *daemon {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	addresses := filepath.Join(t.TempDir(), "addresses")
	ctx, stop := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, path, append([]string{
		"serve", "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--addresses-file=" + addresses,
	}, arguments...)...)
	var said strings.Builder
	command.Stdout, command.Stderr = &said, &said
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		stop()
		_ = command.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	var at map[string]string
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(addresses)
		return err == nil && json.Unmarshal(text, &at) == nil
	}, 30*time.Second, 5*time.Millisecond)
	return &daemon{t, "http://" + at["public"], "http://" + at["admin"]}
}

func (d *daemon) do(method, url, body string) string {
	d.Helper()
	req, err := http.NewRequestWithContext(d.Context(), method, url, strings.NewReader(body))
	require.NoError(d, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(d, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(d, err)
	return string(text)
}

// live lets something of each kind happen, so that every metric is there: those
// with labels are not before.
func (d *daemon) live() {
	d.Helper()
	var opened struct{ Session string }
	require.NoError(d, json.Unmarshal([]byte(d.do("POST", d.public+"/v1/sessions", `{"topics":["a"]}`)), &opened))
	for range 3 {
		d.do("POST", d.public+"/v1/topics/a/messages", "1")
	}
	d.do("GET", d.public+"/v1/sessions/"+opened.Session+"/poll?ack=0", "")
	d.do("DELETE", d.public+"/v1/sessions/"+opened.Session, "")
}

var sample = regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)[ {]`)

// wantMetrics waits until the daemon has all of these, given with who asks for them.
// Some are there only a moment after what they count was answered.
func (d *daemon) wantMetrics(asked map[string]string) {
	d.Helper()
	var missing []string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		known := d.metrics()
		missing = nil
		for name, who := range asked {
			if !known[name] {
				missing = append(missing, who+" asks for "+name)
			}
		}
		if missing == nil {
			return
		}
	}
	require.Empty(d, missing, "the daemon does not have it")
}

// metrics are the names of all samples that the daemon has.
func (d *daemon) metrics() map[string]bool {
	d.Helper()
	names := map[string]bool{}
	for _, found := range sample.FindAllStringSubmatch(d.do("GET", d.admin+"/metrics", ""), -1) {
		names[found[1]] = true
	}
	return names
}
