package acme

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// What a manager does with an authority is tested with Pebble, in deploy/checks.

// The folder holds private keys, so only the daemon's user may read it.
func TestTheFolderIsForTheDaemonOnly(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a", "b")
	m, err := New(Config{Domains: []string{"app.example"}, Storage: folder}, metrics.New("test"), zap.NewNop())
	require.NoError(t, err)
	info, err := os.Stat(folder)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, info.Mode().Perm())
	require.True(t, m.Expires().IsZero())
	_, err = m.Certificate(&tls.ClientHelloInfo{ServerName: "app.example"})
	require.ErrorIs(t, err, errNotStarted)

	require.NoError(t, os.Chmod(folder, 0o750))
	_, err = New(Config{Storage: folder}, metrics.New("test"), zap.NewNop())
	require.ErrorContains(t, err, "chmod 700")

	file := filepath.Join(folder, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = New(Config{Storage: file}, metrics.New("test"), zap.NewNop())
	require.ErrorContains(t, err, "tls.acme.storage: ")
}

// Metrics and handshakes ask while Start runs.
func TestCertificatesAreAskedForDuringStart(t *testing.T) {
	others := goleak.IgnoreCurrent()
	m, err := New(Config{
		Domains: []string{"app.example"}, Storage: filepath.Join(t.TempDir(), "a"), Directory: "https://127.0.0.1:1/directory", Agree: true,
	}, metrics.New("test"), zap.NewNop())
	require.NoError(t, err)
	conn, client := net.Pipe()
	defer conn.Close()
	defer client.Close()
	asks, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		for i := range 1000 {
			m.Expires()
			_, _ = m.Certificate(&tls.ClientHelloInfo{Conn: conn, ServerName: "other.example"})
			if i == 10 {
				close(asks)
			}
		}
	}()
	<-asks
	m.Start(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, nil)
	<-asked
	require.True(t, m.Expires().IsZero())
	m.Stop()
	require.Eventually(t, func() bool { return goleak.Find(others) == nil }, 10*time.Second, time.Millisecond, "what asks for certificates may still write files")
}
