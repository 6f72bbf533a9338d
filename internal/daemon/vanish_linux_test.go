package daemon

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
		require.EqualValues(t, (30*time.Second + giveUpBehind).Milliseconds(), after)
		asked, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
		require.NoError(t, err)
		require.EqualValues(t, keepAlive.Idle.Seconds(), asked)
	}))
}
