package daemon

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
)

// Somebody starts a second daemon while the first writes its state. The second says
// why it does not start, and takes nothing from the first.
func TestTwoDaemonsDoNotShareAStateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	one := start(t, keptIn(path))
	wantRefused := func() {
		cfg := config.Default()
		cfg.StateFile = path
		_, err := New(cfg, zap.NewNop(), "test")
		require.ErrorContains(t, err, path+" is another daemon's that runs")
		require.ErrorContains(t, err, "--state")
	}
	wantRefused()
	require.NoError(t, one.kept.write(func(w io.Writer) error {
		wantRefused()
		_, err := io.WriteString(w, "whole")
		return err
	}))
	had := one.published()
	require.NoError(t, one.wait())
	require.Equal(t, had.Epoch, start(t, keptIn(path)).published().Epoch, "it is free once the first has ended")
}

// In one folder each has its own.
func TestDaemonsShareAFolderOfStateFiles(t *testing.T) {
	folder := t.TempDir()
	one, two := start(t, keptIn(filepath.Join(folder, "one"))), start(t, keptIn(filepath.Join(folder, "two")))
	require.NoError(t, one.wait())
	require.NoError(t, two.wait())
	require.Equal(t, []string{"one", "one.lock", "two", "two.lock"}, filesIn(t, folder))
}
