package store

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/durable"
)

func open(t *testing.T, path string) (*File, error) {
	t.Helper()
	f, err := Open(path, nil, func() func() { return func() {} })
	if err == nil {
		t.Cleanup(f.Release)
	}
	return f, err
}

// An operator starts a second daemon while the first writes its state. The second does
// not start and says why. The first is not disturbed.
func TestOneDaemonHoldsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f, err := open(t, path)
	require.NoError(t, err)
	wantRefused := func() {
		_, err := open(t, path)
		require.ErrorContains(t, err, path+" is in use by another daemon")
	}
	wantRefused()
	require.NoError(t, durable.Write(path, func(w io.Writer) error {
		wantRefused()
		_, err := io.WriteString(w, "whole")
		return err
	}))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "whole", string(text))
	f.Release()
	_, err = open(t, path)
	require.NoError(t, err)
}
