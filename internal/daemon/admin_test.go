package daemon

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
)

// keyOfOperators is in the file that operatorsKey writes.
const keyOfOperators = "key-of-operators-for-tests"

// operatorsKey writes a file for admin.key_file and returns its name.
func operatorsKey(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "admin.key")
	require.NoError(t, os.WriteFile(file, []byte(keyOfOperators+"\n"), 0o600))
	return file
}

// putLevel sets the log's level with a client of the admin listener, and returns the status.
func (d *running) putLevel(c *http.Client, headers ...string) int {
	d.Helper()
	r, err := http.NewRequestWithContext(d.Context(), http.MethodPut, "http://"+d.adminHost()+"/loglevel", strings.NewReader(`{"level":"debug"}`))
	require.NoError(d, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	resp, err := c.Do(r)
	require.NoError(d, err)
	resp.Body.Close()
	return resp.StatusCode
}

// An operator replaces the key while the daemon runs. The old one is refused at once.
func TestTheKeyOfOperatorsCanBeReplaced(t *testing.T) {
	file := operatorsKey(t)
	d := start(t, func(c *config.Config) { c.Admin.KeyFile = file })
	const old, other = "Authorization: Bearer " + keyOfOperators, "Authorization: Bearer another" + keyOfOperators
	require.Equal(t, http.StatusUnauthorized, d.putLevel(d.client))
	require.Equal(t, http.StatusOK, d.putLevel(d.client, old))
	require.NoError(t, os.WriteFile(file, []byte("another"+keyOfOperators), 0o600))
	require.Equal(t, http.StatusUnauthorized, d.putLevel(d.client, old))
	require.Equal(t, http.StatusOK, d.putLevel(d.client, other))
	require.NoError(t, os.Remove(file))
	require.Equal(t, http.StatusInternalServerError, d.putLevel(d.client, other))
	d.reloadWith(func(c *config.Config) { c.Admin.KeyFile = "" })
	require.Equal(t, http.StatusForbidden, d.putLevel(d.client, other))
	d.wantNone([]string{keyOfOperators})
}

// Over a Unix socket, which only the daemon's user can connect to, no key is needed.
func TestOperatorsComeOverAUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	d := start(t, func(c *config.Config) { c.Listen.Admin = "unix:" + path })
	require.Equal(t, "unix:"+path, d.AdminAddr())
	require.Equal(t, http.StatusOK, d.putLevel(d.client))
	require.Equal(t, http.StatusForbidden, d.putLevel(d.client, "Origin: http://localhost"))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())

	connections := make([]net.Conn, 0, 200)
	for range cap(connections) { // more than the listener takes at one time
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		connections = append(connections, c)
	}
	for _, c := range connections {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { // until the daemon has noticed that they are closed, it refuses others
		resp, err := d.client.Get("http://localhost/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, surely, 10*time.Millisecond)
	require.NoError(t, d.wait())
	require.NoFileExists(t, path)
}

// adminHost returns the host of URLs of the admin listener.
func (d *running) adminHost() string {
	if strings.HasPrefix(d.AdminAddr(), "unix:") {
		return "localhost"
	}
	return d.AdminAddr()
}

// dialAdmin connects to the admin listener's Unix socket if the host is localhost without a
// port, as adminHost names it.
func (d *running) dialAdmin(ctx context.Context, network, address string) (net.Conn, error) {
	if path, isSocket := strings.CutPrefix(d.AdminAddr(), "unix:"); isSocket && address == "localhost:80" {
		network, address = "unix", path
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}
