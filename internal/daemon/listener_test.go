package daemon

import (
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// Operators who have come and gone take no place from those who come.
func TestWhoLeavesTheAdminListenerLeavesAPlace(t *testing.T) {
	bound, err := bind("admin", "127.0.0.1:0", 0)
	require.NoError(t, err)
	l := &capped{
		steady: &steady{TCPListener: bound, name: "admin", spare: &spare{}, tell: tellNothing, ended: prometheus.NewCounter(prometheus.CounterOpts{Name: "ended"}), log: zap.NewNop(), closed: make(chan struct{})},
		places: make(chan struct{}, 2),
	}
	defer func() { require.NoError(t, l.Close()) }()
	for range 10 {
		here, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		there, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, there.Close())
		_ = there.Close() // as net/http may
		_ = here.Close()
		require.Empty(t, l.places)
	}
}
