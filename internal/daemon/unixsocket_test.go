package daemon

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/limit"
)

// overSocket returns a client whose requests all go to a Unix socket.
func overSocket(t *testing.T, path string) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A proxy reaches the daemon over a Unix socket. Its clients publish and poll as over TCP, in
// net/http and in the lane. trusted_proxies names the proxy as 127.0.0.1, and then each client
// has the limits of its own address.
func TestAProxyComesOverAUnixSocket(t *testing.T) {
	for _, lane := range []string{"off", "handoff", "channel"} {
		t.Run(lane, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "public.sock")
			d := start(t, func(c *config.Config) {
				c.Lane, c.Listen.Public = lane, "unix:"+path
				c.Limit.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
				c.Limit.Rates[limit.Publishes][limit.Address] = limit.Rate{PerSecond: 1.0 / 3600, Burst: 2}
			})
			require.Equal(t, "unix:"+path, d.PublicAddr())
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, os.ModeSocket|0o660, info.Mode())

			proxy := overSocket(t, path)
			publish := func(forwarded string) int {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/v1/topics/a/messages", strings.NewReader(`"x"`))
				require.NoError(t, err)
				req.Header.Set("X-Forwarded-For", forwarded)
				resp, err := proxy.Do(req)
				require.NoError(t, err)
				defer resp.Body.Close()
				return resp.StatusCode
			}
			for range 2 {
				require.Equal(t, http.StatusOK, publish("192.0.2.1"))
			}
			require.Equal(t, http.StatusTooManyRequests, publish("192.0.2.1"))
			require.Equal(t, http.StatusOK, publish("192.0.2.2"), "another client of the proxy")

			for range 3 { // the lane takes polls, and hands the other requests back
				for _, path := range []string{"/v1/poll?topic=a@oldest", "/v1/topics/a/messages?limit=3"} {
					resp, err := proxy.Get("http://localhost" + path)
					require.NoError(t, err)
					said, err := io.ReadAll(resp.Body)
					require.NoError(t, err)
					resp.Body.Close()
					require.Equal(t, http.StatusOK, resp.StatusCode, path)
					require.Equal(t, 3, strings.Count(string(said), `"Ingi"`), "%s: %s", path, said)
				}
			}
			require.NoError(t, d.wait())
			require.NoFileExists(t, path)
		})
	}
}
