package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
)

// A StopLog keeps the state of a broker whose log is in memory, over planned restarts
// (SyncStop). A daemon that stops writes the state as a checkpoint, which no segment follows.
// The next one reads it, and creates the file UsedName before it serves: that says that all
// other files are out of date. So no two daemons continue from one state, and after a crash a
// new epoch begins. A StopLog also takes over a write-ahead log that
// ended in order, and a WAL the state of a StopLog.
type StopLog struct{ wal *WAL } // reads the folder and holds its lock; nothing is appended to it

// UsedName is the file that exists from before a daemon serves until its state is durable.
const UsedName = "used"

// NewStopLog returns the log of a broker with the log in memory.
func NewStopLog(cfg WALConfig, b *broker.Broker) *StopLog { return &StopLog{NewWAL(cfg, b)} }

// Run reads the state, waits until ctx ends, and writes the state of the broker, which must not
// change any more by then. The error says why one of both failed; else it is that of ctx.
func (l *StopLog) Run(ctx context.Context) error {
	w := l.wal
	w.stopped = ctx.Err
	if err := w.open(w.applyHere, time.Now()); err != nil {
		return err
	}
	<-ctx.Done()
	defer w.abandon()
	if err := w.writeState(); err != nil {
		return fmt.Errorf("the state was not written: %w%s; the next start begins a new epoch", err, diskRemedy(err))
	}
	return ctx.Err()
}

// applyHere applies an entry without Feed.
func (w *WAL) applyHere(e broker.Entry) error {
	_, err := w.broker.Apply(e)
	return err
}

// use lets the log continue in memory, and marks the files as used.
func (r *recovering) use(now time.Time) error {
	w := r.wal
	if w.stopped != nil && w.stopped() != nil { // to write all of it again may take too long
		return w.stopped()
	}
	w.broker.Sweep(now)
	file, err := w.fs.Create(UsedName)
	switch {
	case err == nil:
		err = file.Close()
	case errors.Is(err, fs.ErrExist):
		err = nil
	}
	if err = cmp.Or(err, w.fs.SyncDir()); err != nil {
		return err
	}
	return w.removeAllBut("")
}

// removeAllBut removes the files of the log but one, the lock, and UsedName.
func (w *WAL) removeAllBut(kept string) error {
	names, err := w.fs.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		if isOfLog(name) && name != kept && name != lockName && name != UsedName {
			if err := w.fs.Remove(name); err != nil {
				return err
			}
		}
	}
	return w.fs.SyncDir()
}

// writeState writes the state as the only checkpoint. Until UsedName is removed, it does not count.
func (w *WAL) writeState() error {
	number, heads := uint64(0), []broker.Entry(nil)
	_ = w.broker.Export(func(e broker.Entry) error { // it never fails
		number = max(number, e.Message.Position.Offset)
		if e.Op == broker.OpEpoch {
			number, heads = max(number, e.State.Forgotten), append(heads, e)
		}
		return nil
	})
	c := &checkpoint{number: number}
	if err := w.openCheckpoint(c, heads, &header{epoch: w.broker.Epoch(">"), last: true}); err != nil {
		return err
	}
	for more := true; more; {
		var err error
		if more, err = c.writePart(); err != nil {
			w.abortCheckpoint()
			return err
		}
	}
	w.checkpoint = nil
	c.stop()
	w.closeFile(c.file)
	name := fileName(number, checkpointSuffix)
	for _, step := range []func() error{ // the state is durable and alone before it counts
		func() error { return w.fs.Rename(c.file.name, name) },
		func() error { return w.removeAllBut(name) },
		func() error { return w.fs.Remove(UsedName) },
		w.fs.SyncDir,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	w.cfg.Logger.Info("the state was written", zap.String("file", name), zap.Int64("bytes", c.file.size))
	return nil
}
