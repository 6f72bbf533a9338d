package durable

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAWriteReplacesTheFileWholeOrNotAtAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string, err error) error {
		return Write(path, func(w io.Writer) error {
			_, _ = io.WriteString(w, text)
			return err
		})
	}
	wantContent := func(want string) {
		t.Helper()
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		entries, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, entries, 1)
	}
	require.NoError(t, write("one", nil))
	wantContent("one")
	full := errors.New("no space left")
	require.ErrorIs(t, write("ha", full), full)
	wantContent("one")
	require.NoError(t, os.WriteFile(path+".new", []byte("left by a killed process"), 0o644))
	require.NoError(t, write("two", nil))
	wantContent("two")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestTheLockIsHeldUntilItIsClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	first, err := Lock(path, false)
	require.NoError(t, err)
	_, err = Lock(path, false)
	require.ErrorIs(t, err, ErrLocked)

	locked := make(chan error)
	go func() {
		second, err := Lock(path, true)
		locked <- errors.Join(err, second.Close())
	}()
	require.NoError(t, first.Close())
	require.NoError(t, <-locked)
}

// A calls notes what is done to a file.
type calls struct {
	done []string
	fail string
}

func (c *calls) call(name string) error {
	c.done = append(c.done, name)
	if name == c.fail {
		return errors.New(name + " fails")
	}
	return nil
}

func (c *calls) Write(b []byte) (int, error) { return len(b), c.call("write") }
func (c *calls) Sync() error                 { return c.call("sync") }
func (c *calls) Close() error                { return c.call("close") }

func TestAFileIsSyncedBeforeItIsRenamed(t *testing.T) {
	content := func(w io.Writer) error { _, err := w.Write([]byte("x")); return err }
	order := []string{"write", "sync", "close"}
	f := &calls{}
	require.NoError(t, finish(f, content))
	require.Equal(t, order, f.done)
	for _, fails := range order {
		f := &calls{fail: fails}
		require.ErrorContains(t, finish(f, content), fails)
		require.True(t, slices.Contains(f.done, "close"))
	}
}

func TestAwaitReturnsWhenTheLockIsReleased(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	waits := make(chan struct{}, 1)
	isHeld := func() { waits <- struct{}{} }
	require.NoError(t, Await(t.Context(), path, isHeld))
	require.NoFileExists(t, path+LockSuffix)
	held, err := Lock(path, false)
	require.NoError(t, err)

	ended := make(chan error)
	go func() { ended <- Await(t.Context(), path, isHeld) }()
	<-waits
	require.NoError(t, held.Close())
	require.NoError(t, <-ended)
	require.NoError(t, Await(t.Context(), path, isHeld))
	require.Empty(t, waits, "it did not wait")

	held, err = Lock(path, false)
	require.NoError(t, err)
	defer held.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- Await(ctx, path, isHeld) }()
	<-waits
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
