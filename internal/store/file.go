// Package store keeps a daemon's state on disk: in a write-ahead log, which survives crashes,
// or in a state file, which survives only planned restarts.
package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/durable"
)

// A File is the state file. It exists only between the end of one daemon and the start
// of the next. With a write-ahead log, it is read only if there is no log yet, and never
// written. Save writes it whole or not at all, and TakeOver removes it before the
// next daemon serves clients. So a daemon that crashes leaves no file, and no two daemons
// continue from the same state. From Open until Release no other daemon can open it.
//
// One goroutine calls the methods. Release may be called again.
type File struct {
	path   string // empty: there is no file, and no state is kept
	busy   func() (over func())
	lock   *os.File // nil: not held
	log    FS       // of the write-ahead log; nil: there is none
	begun  bool     // Restore found a write-ahead log, which has the state
	found  bool     // Restore found a file
	damage error    // why the file that was found cannot be restored
}

// Open locks the state file at path and checks that it can be written. With an empty
// path there is no file, and every method does nothing. log is the folder of the write-ahead
// log, or nil. busy is called before the file is read or written, which may take long, and
// over afterwards.
func Open(path string, log FS, busy func() (over func())) (*File, error) {
	f := &File{path: path, log: log, busy: busy}
	if path == "" {
		return f, nil
	}
	if err := f.probe(); err != nil {
		f.Release()
		return nil, fmt.Errorf("state: %w", err)
	}
	return f, nil
}

// Release unlocks the state file, for another daemon.
func (f *File) Release() {
	if f.lock != nil {
		f.lock.Close() // nothing was written
		f.lock = nil
	}
}

// Restore returns a broker, as open makes it, that continues from the state file. If there is
// no file, or it is damaged, or there is a log, the broker is empty. Restore does not change
// the file: TakeOver does, once this daemon is sure to serve. On error the file is released.
func (f *File) Restore(open func() *broker.Broker, now time.Time) (b *broker.Broker, err error) {
	defer func() {
		if err != nil {
			f.Release()
		}
	}()
	if f.log != nil {
		if f.begun, err = hasLog(f.log); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
	}
	state, err := os.Open(f.path) // an empty path does not exist
	if errors.Is(err, fs.ErrNotExist) {
		return open(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w (give the daemon permission to read it, or move it away)", err)
	}
	defer state.Close()
	f.found = true
	if f.begun {
		return open(), nil
	}
	defer f.busy()()
	if b, f.damage = read(state, open, now); f.damage != nil {
		return open(), nil
	}
	return b, nil
}

// TakeOver removes the file that Restore found, so that no daemon continues from it
// again. A file that was not used is moved aside. With a log, call it once the log has the
// state. On error the daemon must not serve.
func (f *File) TakeOver(log *zap.Logger, b *broker.Broker) error {
	log = log.With(zap.String("file", f.path), zap.String("epoch", b.Epoch(">")))
	switch {
	case f.path == "", !f.found && f.log != nil:
		return nil
	case !f.found:
		log.Info("no state file: a new epoch begins")
		return nil
	case f.begun:
		aside, err := f.moveAside(".unused")
		if err != nil {
			return err
		}
		log.Warn("the state file was not read, because store.dir has a log; the file was moved aside", zap.String("moved_to", aside))
	case f.damage != nil:
		aside, err := f.moveAside(".unreadable")
		if err != nil {
			return err
		}
		log.Warn("the state file cannot be read and was moved aside: a new epoch begins, and subscribers get a gap, restarted",
			zap.String("moved_to", aside), zap.Error(f.damage))
	default:
		if err := os.Remove(f.path); err != nil {
			return fmt.Errorf("state: %w", err)
		}
		log.Info("the state was restored: the epoch continues")
	}
	return durable.SyncFolder(f.path)
}

// moveAside renames the file.
func (f *File) moveAside(suffix string) (to string, err error) {
	to = f.path + suffix
	if err := os.Rename(f.path, to); err != nil {
		return "", fmt.Errorf("state: %w", err)
	}
	return to, nil
}

// Save writes b's state, which must not change any more, unless there is a log.
func (f *File) Save(log *zap.Logger, b *broker.Broker) error {
	if f.path == "" || f.log != nil {
		return nil
	}
	begun := time.Now()
	defer f.busy()()
	if err := durable.Write(f.path, func(w io.Writer) error { return write(w, b) }); err != nil {
		err = fmt.Errorf("state: %w; the next daemon begins a new epoch", err)
		log.Error("the state could not be written", zap.Error(err)) // also returned: it decides the exit code
		return err
	}
	log.Info("the state was written", zap.String("file", f.path), zap.Duration("took", time.Since(begun)))
	return nil
}

// writable is the remedy for a file that cannot be written.
const writable = "(--state must name a file in a folder that the daemon can write to, on a file system with locks)"

// probe locks the file, and checks that it can be written.
func (f *File) probe() error {
	if s, err := os.Stat(f.path); err == nil && !s.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file %s", f.path, writable)
	}
	var err error
	if f.lock, err = durable.Lock(f.path, false); errors.Is(err, durable.ErrLocked) {
		return fmt.Errorf("%s is in use by another daemon (wait until it has ended, or give each daemon its own --state)", f.path)
	}
	if err != nil {
		return fmt.Errorf("%w %s", err, writable)
	}
	temporary, err := durable.Create(f.path)
	if err != nil {
		return fmt.Errorf("%w %s", err, writable)
	}
	return errors.Join(temporary.Close(), os.Remove(temporary.Name()))
}
