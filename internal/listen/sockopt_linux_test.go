package listen

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Connections inherit from their listener when the kernel gives them up, and are asked
// for a sign of life.
func TestTheKernelGivesUpClientsThatVanish(t *testing.T) {
	l, err := bind("public", "127.0.0.1:0", 30*time.Second)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	c, err := l.AcceptTCP()
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		after, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout)
		require.NoError(t, err)
		require.EqualValues(t, (30*time.Second + unackedMargin).Milliseconds(), after)
		asked, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
		require.NoError(t, err)
		require.EqualValues(t, keepAlive.Idle.Seconds(), asked)
	}))
}

// What a client does not read is not the kernel's to keep by the megabyte.
func TestTheKernelKeepsLittleForWhoDoesNotRead(t *testing.T) {
	l, err := bind("public", "127.0.0.1:0", time.Minute)
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
	for stuck := 0; stuck < 4; { // once may be this test's slowness
		require.NoError(t, served.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		n, err := served.Write(piece)
		taken += n
		if stuck++; err == nil {
			stuck = 0
		}
	}
	require.Greater(t, taken, 32<<10)
	require.Less(t, taken, unsentBytes+512<<10, "with what is on its way")
}
