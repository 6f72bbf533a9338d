package daemon

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
