package listen

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// passed returns what Inherit makes of a socket that the service manager passes.
func passed(t *testing.T, name, network, address string) Sockets {
	t.Helper()
	l, err := net.Listen(network, address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	f, err := l.(interface{ File() (*os.File, error) }).File()
	require.NoError(t, err)
	sockets := Sockets{}
	require.NoError(t, sockets.inherit(name, f))
	require.NoError(t, f.Close())
	t.Cleanup(sockets.Close)
	return sockets
}

func listenOnPassed(sockets Sockets, address string) (*Listener, error) {
	return Listen(Config{
		Name: "admin", Address: address, SocketMode: OwnerOnly, MaxConnections: 10, Sockets: sockets,
		WriteTimeout: time.Second, Spare: &Spare{}, Metrics: metrics.New("test"), Log: zap.NewNop(),
	})
}

// The settings say who needs authorisation where. So a passed socket counts only at the address
// of its setting.
func TestAPassedSocketMustBeWhereTheSettingSays(t *testing.T) {
	for _, tt := range []struct {
		passed, setting string
		fits            bool
	}{
		{"127.0.0.1:0", "127.0.0.1:0", true},
		{"127.0.0.1:0", "localhost:0", true},
		{"0.0.0.0:0", ":0", true},
		{"[::]:0", "0.0.0.0:0", true},
		{"0.0.0.0:0", "127.0.0.1:0", false},
		{"127.0.0.1:0", "0.0.0.0:0", false},
		{"127.0.0.1:0", "127.0.0.1:1", false},
		{"127.0.0.1:0", "unix:/run/pubsubd/admin.sock", false},
	} {
		l, err := listenOnPassed(passed(t, "admin", "tcp", tt.passed), tt.setting)
		if !tt.fits {
			require.ErrorContains(t, err, "give both the same address", "%+v", tt)
			continue
		}
		require.NoError(t, err, "%+v", tt)
		require.True(t, l.IsInherited())
		require.NoError(t, l.Close())
	}
}

// A Unix socket that others can connect to would let them change something without a key.
func TestAPassedUnixSocketMustNotBeOpenToOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	sockets := passed(t, "admin", "unix", path)
	require.NoError(t, os.Chmod(path, 0o660))
	_, err := listenOnPassed(sockets, UnixPrefix+path)
	require.ErrorContains(t, err, "SocketMode=0600")

	require.NoError(t, os.Remove(path))
	sockets = passed(t, "admin", "unix", path)
	require.NoError(t, os.Chmod(path, 0o600))
	_, err = listenOnPassed(sockets, UnixPrefix+path+"2")
	require.ErrorContains(t, err, "give both the same address")
	require.NoError(t, os.Remove(path))
	sockets = passed(t, "admin", "unix", path)
	require.NoError(t, os.Chmod(path, 0o600))
	l, err := listenOnPassed(sockets, UnixPrefix+path)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.FileExists(t, path, "the service manager keeps it")
}

// Connections of a passed socket wait in its queue after the listener has closed, and the next
// listener accepts them.
func TestAPassedSocketOutlivesItsListener(t *testing.T) {
	sockets := passed(t, "admin", "tcp", "127.0.0.1:0")
	kept := sockets["admin"]
	again := inheritedTCP{}
	raw, err := kept.(inheritedTCP).File()
	require.NoError(t, err)
	l, err := listenOnPassed(sockets, "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())

	client, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer client.Close()
	next, err := net.FileListener(raw)
	require.NoError(t, err)
	require.NoError(t, raw.Close())
	again.TCPListener = next.(*net.TCPListener)
	l, err = listenOnPassed(Sockets{"admin": again}, address)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	c, err := l.Accept()
	require.NoError(t, err)
	require.Equal(t, client.LocalAddr().String(), c.RemoteAddr().String())
	require.NoError(t, c.Close())
}

func TestASocketThatNobodyUsesIsRefused(t *testing.T) {
	sockets := passed(t, "pubsubd.socket", "tcp", "127.0.0.1:0")
	require.ErrorContains(t, sockets.Unused(), "FileDescriptorName=")
	require.NoError(t, Sockets(nil).Unused())
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer f.Close()
	require.ErrorContains(t, sockets.inherit("public", f), "ListenStream=")
	twice := passed(t, "admin", "tcp", "127.0.0.1:0")
	require.ErrorContains(t, twice.inherit("admin", f), "second of this name")
}
