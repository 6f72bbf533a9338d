package listen

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func beside(t *testing.T, address string) *Listener {
	t.Helper()
	sockets := Sockets{}
	require.NoError(t, sockets.BindBeside("admin", address))
	l, err := listenOnPassed(sockets, address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// wantNext connects fifty times, and wants the listener to accept each connection.
func wantNext(t *testing.T, l *Listener) {
	t.Helper()
	for range 50 {
		client, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		c, err := l.Accept() // blocks if another listener has the connection
		require.NoError(t, err)
		require.Equal(t, client.LocalAddr().String(), c.RemoteAddr().String())
		require.NoError(t, c.Close())
		require.NoError(t, client.Close())
	}
}

// Three daemons follow each other on one address. At any time one of them gets all connections:
// the old one until it hands over, and then the next one.
func TestOneOfTwoDaemonsGetsAllConnections(t *testing.T) {
	one := beside(t, "127.0.0.1:0")
	wantNext(t, one)
	for range 3 {
		two := beside(t, one.Addr().String())
		wantNext(t, one)
		one.HandOver()
		wantNext(t, two)
		require.NoError(t, one.Close())
		wantNext(t, two)
		one = two
	}
	one.HandOver()
	wantNext(t, one) // there is no other
}

func TestADaemonThatDoesNotShareKeepsItsAddress(t *testing.T) {
	l := listening(t, 1)
	err := Sockets{}.BindBeside("public", l.Addr().String())
	require.ErrorContains(t, err, "listen.reuseport")
}
