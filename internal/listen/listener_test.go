package listen

import (
	"net"
	"sync"
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

// A lateSocket accepts a connection while it is closed.
type lateSocket struct {
	socket
	accepts, closed chan struct{}
	conn            net.Conn
}

func (s *lateSocket) Accept() (net.Conn, error) {
	close(s.accepts)
	<-s.closed
	return s.conn, nil
}

func (s *lateSocket) Close() error {
	close(s.closed)
	return s.socket.Close()
}

// AwaitRequests must know all connections.
func TestCloseWaitsForAConnectionThatIsBeingAccepted(t *testing.T) {
	l := listening(t, 1)
	here, there := net.Pipe()
	defer here.Close()
	late := &lateSocket{socket: l.socket, accepts: make(chan struct{}), closed: make(chan struct{}), conn: there}
	l.socket = late
	var accepting sync.WaitGroup
	accepting.Go(func() { _, _ = l.Accept() })
	<-late.accepts
	require.NoError(t, l.Close())
	require.True(t, l.hasFresh(func(*Conn) bool { return true }))
	accepting.Wait()
}
