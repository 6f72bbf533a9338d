package listen

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Connections inherit the user timeout and keep-alive from their listener.
func TestTheKernelGivesUpClientsThatVanish(t *testing.T) {
	l, err := bind(Config{Address: "127.0.0.1:0", WriteTimeout: 30 * time.Second})
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	c, err := l.Accept()
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	raw, err := c.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		after, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, userTimeout)
		require.NoError(t, err)
		require.EqualValues(t, (30*time.Second + unackedMargin).Milliseconds(), after)
		idle, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
		require.NoError(t, err)
		require.EqualValues(t, keepAlive.Idle.Seconds(), idle)
	}))
}

// The kernel does not buffer megabytes for a client that does not read.
func TestTheKernelBuffersLittleForASlowReader(t *testing.T) {
	l, err := bind(Config{Address: "127.0.0.1:0", WriteTimeout: time.Minute})
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.(*net.TCPConn).SetReadBuffer(4<<10))
	served, err := l.Accept()
	require.NoError(t, err)
	defer served.Close()
	taken, piece := 0, make([]byte, 16<<10)
	for stuck := 0; stuck < 4; { // one timeout may be due to a slow test machine
		require.NoError(t, served.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		n, err := served.Write(piece)
		taken += n
		if stuck++; err == nil {
			stuck = 0
		}
	}
	require.Greater(t, taken, 32<<10)
	require.Less(t, taken, unsentBytes+256<<10, "unsent bytes and bytes in flight")
}

// pair returns both ends of a connection.
func pair(t *testing.T, l *Listener) (client net.Conn, conn *Conn) {
	t.Helper()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	accepted, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = accepted.Close() })
	return client, Of(accepted)
}

// A busy server has not read the begin of a request yet when the daemon stops. Only the
// connection of a silent client is closed.
func TestAwaitRequestsCountsUnreadBytes(t *testing.T) {
	l := listening(t, 2)
	sender, sending := pair(t, l)
	silent, _ := pair(t, l)
	_, err := sender.Write([]byte("G"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return sending.askSystem(isReadable) }, 10*time.Second, time.Millisecond)
	returned := make(chan struct{})
	go func() {
		l.AwaitRequests(t.Context(), 0)
		close(returned)
	}()
	_, err = io.ReadAll(silent)
	require.NoError(t, err, "it is closed")
	_, err = sending.Read(make([]byte, 1))
	require.NoError(t, err)
	require.True(t, l.hasFresh((*Conn).isSending))
	sending.Opened()
	_, fresh := l.fresh.Load(sending)
	require.False(t, fresh)
	<-returned
	require.False(t, sending.closed.Load())
}
