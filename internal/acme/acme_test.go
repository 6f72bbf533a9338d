package acme

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
