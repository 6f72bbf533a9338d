package listen

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// listening returns a listener for at most that many operators.
func listening(t *testing.T, most int) *Listener {
	t.Helper()
	return listeningOn(t, "127.0.0.1:0", most)
}

func listeningOn(t *testing.T, address string, most int) *Listener {
	t.Helper()
	l, err := Listen(Config{
		Name: "admin", Address: address, SocketMode: OwnerOnly, MaxConnections: most,
		WriteTimeout: time.Second, Spare: &Spare{}, Metrics: metrics.New("test"), Log: zap.NewNop(),
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Closed connections do not count against the maximum of the admin listener.
func TestClosedConnectionsDoNotCount(t *testing.T) {
	l := listening(t, 2)
	for range 10 {
		here, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		there, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, there.Close())
		_ = there.Close() // as net/http may
		_ = here.Close()
		require.Zero(t, l.open.Load())
	}
}
