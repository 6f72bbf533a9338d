package daemon

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
)

// knock connects to the public listener and sends nothing. The end of the test closes the
// connection.
func (d *running) knock() net.Conn {
	d.Helper()
	c, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(d, err)
	d.Cleanup(func() { _ = c.Close() })
	require.NoError(d, c.SetDeadline(time.Now().Add(time.Minute)))
	return c
}

// knockInVain connects and waits until the daemon refuses the connection, with an answer
// or a reset. A reset can arrive before Dial returns.
func (d *running) knockInVain() {
	if c, err := net.Dial("tcp", d.PublicAddr()); err == nil {
		_, _ = io.ReadAll(c)
		_ = c.Close()
	}
}

// The log has one warning, not one for each refused connection.
func TestTheLogWarnsOfFullConnections(t *testing.T) {
	const most = 3
	d := start(t, func(c *config.Config) { c.Limit.Connections = most })
	in := make([]net.Conn, most)
	for i := range in {
		in[i] = d.knock()
	}
	for range 5 {
		d.knockInVain()
	}
	for _, c := range in {
		require.NoError(t, c.Close())
	}
	require.NoError(t, d.wait())
	entries := d.logged.FilterMessageSnippet("limits.connections is reached").All()
	require.Len(t, entries, 1)
	entry := entries[0]
	require.Equal(t, zap.WarnLevel, entry.Level)
	require.Contains(t, entry.Message, "raise it")
	require.Equal(t, map[string]any{"listener": "public", "limits.connections": int64(most)}, entry.ContextMap())
}

// A refusal because of the limit of one address is not logged: the daemon is not full.
func TestTheLogOmitsRefusalsOfOneAddress(t *testing.T) {
	d := start(t, func(c *config.Config) { c.Limit.AddressConnections = 1 })
	in := d.knock()
	d.knockInVain()
	require.NoError(t, in.Close())
	require.NoError(t, d.wait())
	require.Zero(t, d.logged.FilterMessageSnippet("refused").Len())
}
