// Package durable writes files that outlast a crash, and locks them against other processes.
package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("held by another process")

// LockSuffix follows the name of a file in the name of the file that Lock makes beside it.
const LockSuffix = ".lock"

// Lock locks the file at path, which need not exist. With wait it waits for another
// process that holds the lock, else it returns ErrLocked. To unlock, close what Lock
// returns; the end of the process unlocks too.
//
// Lock locks a separate file beside path, which stays. The file at path may be replaced or
// removed: then two processes could lock two files of that name.
func Lock(path string, wait bool) (*os.File, error) {
	path += LockSuffix
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		GiveToFolder(f)
	} else if errors.Is(err, fs.ErrExist) { // a link is not followed: in a folder of another user it could name any file
		f, err = os.OpenFile(path, os.O_RDWR|noFollow, 0)
	}
	if err != nil {
		return nil, err
	}
	if err := lock(f, wait); err != nil {
		f.Close() // nothing was written
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// Await waits until no other process holds the lock of the file at path, or ctx ends. It makes
// no file. held is called once if it has to wait.
func Await(ctx context.Context, path string, held func()) error {
	for called := false; ; called = true {
		if _, err := os.Stat(path + LockSuffix); err != nil {
			return nil // nobody has locked it; or Lock says what is wrong
		}
		f, err := Lock(path, false)
		if !errors.Is(err, ErrLocked) {
			f.Close()  // nothing was written; f may be nil
			return nil // likewise
		}
		if !called {
			held()
		}
		select {
		case <-time.After(awaitEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitEvery is how often Await tries. flock(2) can wait, too, but not until a context ends.
const awaitEvery = 10 * time.Millisecond

// GiveToFolder gives a new file to the owner of its folder. Only root can, and needs to.
func GiveToFolder(f *os.File) {
	if folder, err := os.Stat(filepath.Dir(f.Name())); err == nil {
		_ = keepOwner(f, folder)
	}
}

// Write replaces the file at path with what content writes: whole, or not at all. Once
// Write has returned nil, a crash does not undo it.
//
// The file has mode 0600 and the owner of the file that it replaces. If there is none, root gives
// it to the owner of the folder, so that root can make files for a daemon. Write also replaces a
// file that a killed process left unfinished, so the caller must hold the lock.
func Write(path string, content func(io.Writer) error) error {
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // other users must not read secrets
	if err != nil {
		return err
	}
	err = finish(f, func(w io.Writer) error {
		if old, err := os.Stat(path); err != nil {
			GiveToFolder(f)
		} else if err := keepOwner(f, old); err != nil {
			return err
		}
		return content(w)
	})
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return SyncFolder(path)
}

// A file is what finish needs of an *os.File.
type file interface {
	io.WriteCloser
	Sync() error
}

// finish writes and closes a file, which is then on disk.
func finish(f file, content func(io.Writer) error) error {
	err := content(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// SyncFolder makes a change of the name of the file at path durable.
func SyncFolder(path string) error {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
