package listen

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Connections inherit the user timeout and keep-alive from their listener.
func TestTheKernelGivesUpClientsThatVanish(t *testing.T) {
	l, err := open(Config{Address: "127.0.0.1:0", WriteTimeout: 30 * time.Second})
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
	l, err := open(Config{Address: "127.0.0.1:0", WriteTimeout: time.Minute})
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
		l.AwaitRequests(t.Context(), 0, nil)
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

// A client writes its request after the daemon has ended the silent connection. The answer waits
// for it, and nobody serves the request.
func TestADismissedClientGetsAnAnswer(t *testing.T) {
	l := listening(t, 2)
	l.cfg.Refusal = HTTPRefusal
	client, conn := pair(t, l)
	l.AwaitRequests(t.Context(), 0, problem.New(wire.CodeDraining, "retry", "the daemon is shutting down"))
	_, err := io.WriteString(client, "GET / HTTP/1.1\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(client), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.True(t, conn.closed.Load())
}

// The request arrives while the daemon decides that the client is silent.
func TestADismissedRequestIsNotServed(t *testing.T) {
	l := listening(t, 2)
	client, conn := pair(t, l)
	_, err := io.WriteString(client, "GET")
	require.NoError(t, err)
	conn.lastRead.Store(dismissed) // dismiss goes no further until Read has the bytes
	n, err := conn.Read(make([]byte, 3))
	require.Zero(t, n)
	require.ErrorIs(t, err, io.EOF)
}

// A busy daemon reads after the deadline what the client has sent before.
func TestBytesThatCameInTimeAreReadAfterTheDeadline(t *testing.T) {
	l := listening(t, 2)
	client, conn := pair(t, l)
	deadline := time.Now().Add(20 * time.Millisecond)
	require.NoError(t, conn.SetReadDeadline(deadline))
	_, err := io.WriteString(client, "GET")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return time.Now().After(deadline) && conn.askSystem(isReadable) }, 10*time.Second, time.Millisecond)
	b := make([]byte, 3)
	n, err := conn.Read(b)
	require.NoError(t, err)
	require.Equal(t, "GET", string(b[:n]))
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(-time.Second))) // net/http takes the connection back
	_, err = io.WriteString(client, "/")
	require.NoError(t, err)
	_, err = conn.Read(b)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}
