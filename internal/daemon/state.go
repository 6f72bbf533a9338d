package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A stateFile is where a daemon's state is between its end and its successor's
// start, and only then: it is written whole or not at all, and gone before the
// successor serves anyone. A daemon that crashes so leaves none, and nobody ever
// goes on from a state that others went on from. From load until release no other
// daemon can have the same one.
type stateFile struct {
	path    string    // empty: there is none, and nothing is kept
	manager *notifier // hears that to read and to write it takes time
	found   bool
	damage  error    // why what was found cannot be gone on with
	claimed *os.File // its lock is held; nil: nobody's, or another's
}

// load returns a broker that goes on where the state file says, or else a new one.
// It changes nothing: takeOver does, once it is sure that this daemon serves. The
// error is of a file that could never be written, or is another daemon's; it is
// released then.
func (f *stateFile) load(cfg broker.Config, m *metrics.Metrics, now time.Time) (*broker.Broker, error) {
	if f.path == "" {
		return broker.New(cfg, m, now), nil
	}
	if err := f.probe(); err != nil {
		f.release()
		return nil, fmt.Errorf("state: %w", err)
	}
	b, err := f.read(cfg, m, now)
	if err != nil {
		f.release()
		return nil, fmt.Errorf("state: %w (let the daemon read it, or move it away)", err)
	}
	return b, nil
}

func (f *stateFile) read(cfg broker.Config, m *metrics.Metrics, now time.Time) (*broker.Broker, error) {
	state, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return broker.New(cfg, m, now), nil
	}
	if err != nil {
		return nil, err
	}
	defer state.Close()
	f.found = true
	defer f.manager.busy()()
	b, err := broker.Restore(cfg, m, state, now)
	if err != nil {
		f.damage = err
		return broker.New(cfg, m, now), nil
	}
	return b, nil
}

// writable is the remedy where the file cannot be.
const writable = "(--state names a file in a folder that the daemon may write to)"

// probe claims the file, or reports why it could not be written.
func (f *stateFile) probe() error {
	if s, err := os.Stat(f.path); err == nil && !s.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file %s", f.path, writable)
	}
	if err := f.claim(); err != nil {
		return err
	}
	temporary, err := f.create()
	if err != nil {
		return fmt.Errorf("%w %s", err, writable)
	}
	return errors.Join(temporary.Close(), os.Remove(temporary.Name()))
}

// create makes an empty file beside the state file, in the place of one that a
// daemon left there which was killed while it wrote: one that lives holds the claim.
func (f *stateFile) create() (*os.File, error) {
	path := f.path + ".new"
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // payloads are for nobody else
}

// takeOver makes sure that what was found is not gone on from again, and says what
// became of it. If it cannot, the daemon must not serve.
func (f *stateFile) takeOver(log *zap.Logger, b *broker.Broker) error {
	log = log.With(zap.String("file", f.path), zap.String("epoch", b.Epoch()))
	switch {
	case f.path == "":
		return nil
	case !f.found:
		log.Info("no state file: a new epoch begins")
		return nil
	case f.damage != nil:
		aside := f.path + ".unreadable"
		if err := os.Rename(f.path, aside); err != nil {
			return fmt.Errorf("state: %w", err)
		}
		log.Warn("the state file cannot be read and was moved aside: a new epoch begins, and subscribers are told a gap",
			zap.String("moved_to", aside), zap.Error(f.damage))
	default:
		if err := os.Remove(f.path); err != nil {
			return fmt.Errorf("state: %w", err)
		}
		log.Info("the state was restored: the epoch goes on")
	}
	return syncFolder(f.path)
}

// save writes b's state, of which nothing may change any more.
func (f *stateFile) save(b *broker.Broker) error {
	defer f.manager.busy()()
	err := f.write(func(w io.Writer) error { return b.Save(w, time.Now()) })
	if err != nil {
		return fmt.Errorf("state: %w; the next daemon begins a new epoch", err)
	}
	return nil
}

// write makes the file appear whole, with what content writes, or not at all.
func (f *stateFile) write(content func(io.Writer) error) error {
	temporary, err := f.create()
	if err != nil {
		return err
	}
	err = content(temporary)
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), f.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name()))
	}
	return syncFolder(f.path)
}

// syncFolder makes what happened to the file's name last, whatever happens to the
// machine.
func syncFolder(path string) error {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
