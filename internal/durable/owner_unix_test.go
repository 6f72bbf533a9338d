//go:build unix && !aix && !solaris

package durable

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Root makes files for a daemon that runs as another user. Others keep what they make.
func TestFilesBelongToTheOwnerOfTheirFolder(t *testing.T) {
	folder, owner := t.TempDir(), os.Geteuid()
	if owner == 0 {
		owner = 12345
		require.NoError(t, os.Chown(folder, owner, owner))
	}
	path := filepath.Join(folder, "keys")
	wantOwner := func(of string, want int) {
		t.Helper()
		info, err := os.Stat(of)
		require.NoError(t, err)
		require.EqualValues(t, want, info.Sys().(*syscall.Stat_t).Uid, of)
	}
	write := func() {
		t.Helper()
		held, err := Lock(path, false)
		require.NoError(t, err)
		require.NoError(t, Write(path, func(w io.Writer) error { _, err := io.WriteString(w, "x"); return err }))
		require.NoError(t, held.Close())
	}
	write()
	wantOwner(path, owner)
	wantOwner(path+".lock", owner)
	if os.Geteuid() == 0 {
		owner = 23456
		require.NoError(t, os.Chown(path, owner, owner))
	}
	write()
	wantOwner(path, owner)
}

// Another user cannot make root open, or give away, a file by a link in its folder.
func TestLocksFollowNoLinks(t *testing.T) {
	folder := t.TempDir()
	precious := filepath.Join(folder, "precious")
	require.NoError(t, os.WriteFile(precious, []byte("x"), 0o600))
	path := filepath.Join(folder, "keys")
	for _, link := range []string{path + ".lock", path + ".new"} {
		require.NoError(t, os.Symlink(precious, link))
	}
	_, err := Lock(path, false)
	require.ErrorIs(t, err, syscall.ELOOP)
	require.NoError(t, Write(path, func(io.Writer) error { return nil }))
	text, err := os.ReadFile(precious)
	require.NoError(t, err)
	require.Equal(t, "x", string(text))
}
