package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pubsubd/pubsubd/internal/durable"
)

// An FS is the folder of a write-ahead log. Names have no folder in them. A simulation of
// a disk implements it, too. Methods may be called concurrently.
//
// A power loss may undo each change that was not synced: FileWriter.Sync makes the content
// of a file durable, and SyncDir the names of the files.
type FS interface {
	// Create makes a file. It fails with fs.ErrExist if there is one.
	Create(name string) (FileWriter, error)
	// Open opens a file to read. It fails with fs.ErrNotExist if there is none.
	Open(name string) (FileReader, error)
	// Rename gives a file another name, and replaces the file of that name.
	Rename(from, to string) error
	// Remove removes a file.
	Remove(name string) error
	// List returns the names of all files, in order.
	List() ([]string, error)
	// SyncDir makes Create, Rename and Remove durable.
	SyncDir() error
	// Lock keeps other processes out until the lock is closed. It fails with
	// durable.ErrLocked if another process holds the lock.
	Lock() (io.Closer, error)
}

// A FileWriter is a file that is written from its beginning to its end.
type FileWriter interface {
	// Write appends to the file. After an error the file may hold a part of p.
	Write(p []byte) (int, error)
	// Sync makes everything durable that was written before the call. It may be called
	// while another goroutine writes.
	Sync() error
	// Truncate cuts the file to a size. The next Write appends there.
	Truncate(size int64) error
	Close() error
}

// A FileReader is a file that is read from its beginning to its end.
type FileReader interface {
	io.Reader
	// Size returns the size of the file.
	Size() (int64, error)
	Close() error
}

// BootID returns the id of this run of the kernel, or "" if it is unknown.
func BootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// osFS is a folder of the operating system.
type osFS struct{ dir string }

// OpenDir returns the folder at a path. If it does not exist, OpenDir creates it with mode
// 0700.
func OpenDir(dir string) (FS, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w (store.dir must name a folder that the daemon can write to)", err)
	}
	if s, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !s.IsDir() {
		return nil, fmt.Errorf("%s is not a folder (store.dir must name a folder that the daemon can write to)", dir)
	}
	return osFS{dir}, nil
}

func (f osFS) path(name string) string { return filepath.Join(f.dir, name) }

func (f osFS) Create(name string) (FileWriter, error) {
	file, err := os.OpenFile(f.path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	durable.GiveToFolder(file) // a repair by root must leave files that the daemon can read
	return osFile{file}, nil
}

func (f osFS) Open(name string) (FileReader, error) {
	file, err := os.Open(f.path(name))
	if err != nil {
		return nil, err
	}
	return osFile{file}, nil
}

func (f osFS) Rename(from, to string) error { return os.Rename(f.path(from), f.path(to)) }

func (f osFS) Remove(name string) error { return os.Remove(f.path(name)) }

func (f osFS) List() ([]string, error) {
	entries, err := os.ReadDir(f.dir) // in order
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		switch {
		case e.Type().IsRegular():
			names = append(names, e.Name())
		case !e.IsDir() || isOfLog(e.Name()): // in place of a segment, for instance: without it, the log would have a hole
			return nil, fmt.Errorf("%s is not a regular file: put a regular file in its place, or move it away", filepath.Join(f.dir, e.Name()))
		}
	}
	return names, nil
}

// lockName is the file that osFS.Lock locks.
const lockName = "store" + durable.LockSuffix

// isOfLog reports whether a log uses a file of that name.
func isOfLog(name string) bool {
	return name == lockName || name == failedSyncName || name == reserveName || name == UsedName || KindOf(strings.TrimSuffix(name, unfinishedSuffix)) != KindOther
}

func (f osFS) SyncDir() error { return durable.SyncFolder(f.path("any")) }

func (f osFS) Lock() (io.Closer, error) {
	lock, err := durable.Lock(f.path(strings.TrimSuffix(lockName, durable.LockSuffix)), false)
	switch {
	case errors.Is(err, durable.ErrLocked):
		return nil, fmt.Errorf("%s is in use by another daemon or command: %w (stop it first, or give each daemon its own store.dir)", f.dir, err)
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EISDIR):
		return nil, fmt.Errorf("%w (%s must be a regular file: remove it while no daemon runs; the start makes it)", err, lockName)
	case err != nil:
		return nil, fmt.Errorf("%w%s", err, diskRemedy(err))
	}
	return lock, nil
}

// osFile is a FileWriter and a FileReader of the operating system.
type osFile struct{ *os.File }

func (f osFile) Truncate(size int64) error {
	if err := f.File.Truncate(size); err != nil {
		return err
	}
	_, err := f.Seek(size, io.SeekStart)
	return err
}

func (f osFile) Size() (int64, error) {
	s, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return s.Size(), nil
}
