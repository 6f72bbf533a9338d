//go:build unix

package listen

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyTheOwnerMayConnectToAUnixSocket(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "admin.sock")
	l := listeningOn(t, UnixPrefix+path, 2)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())

	here, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer here.Close()
	there, err := l.Accept()
	require.NoError(t, err)
	_, err = there.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, there.Close())
	require.NoError(t, l.Close())
	require.NoFileExists(t, path)
}

// The second daemon of one socket does not start. If the first was killed, it does.
func TestAUnixSocketHasOneListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	killed, err := bindUnix(path, OwnerOnly)
	require.NoError(t, err)
	_, err = bindUnix(path, OwnerOnly)
	require.ErrorContains(t, err, "in use")
	require.NoError(t, killed.UnixListener.Close())
	require.FileExists(t, path)
	listeningOn(t, UnixPrefix+path, 1)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	_, err = bindUnix(file, OwnerOnly)
	require.ErrorContains(t, err, "not a socket")
	require.FileExists(t, file)
}

// The script that starts a daemon may first remove the socket of the one that still runs. When
// that one stops, the socket of the new daemon stays.
func TestAListenerRemovesOnlyItsOwnUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "public.sock")
	bind := func() *boundUnix {
		l, err := bindUnix(path, OwnerOnly)
		require.NoError(t, err)
		return l
	}
	first := bind()
	require.NoError(t, os.Remove(path))
	second := bind()
	require.NoError(t, first.Close())
	c, err := net.Dial("unix", path)
	require.NoError(t, err, "the second daemon listens")
	require.NoError(t, c.Close())
	require.NoError(t, second.Close())
	require.NoFileExists(t, path)

	gone := bind()
	require.NoError(t, os.Remove(path))
	require.NoError(t, gone.Close())

	replaced := bind()
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	require.NoError(t, replaced.Close())
	require.FileExists(t, path)
}

// One connection too many over a Unix socket is closed without a word.
func TestAUnixSocketRefusesWhatIsTooMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	l := listeningOn(t, UnixPrefix+path, 0)
	accepted := make(chan error)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	here, err := net.Dial("unix", path)
	require.NoError(t, err)
	n, err := here.Read(make([]byte, 1))
	require.Zero(t, n)
	require.Error(t, err)
	require.NoError(t, here.Close())
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-accepted, net.ErrClosed)
}
