package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"go.uber.org/zap"
)

// A mark says how far a log reaches on disk. It is in a file of its own, so that a start
// notices a log that ends too early: the newest segment was removed, was cut, or is an older copy.
// A mark never says more than what is durable: a checkpoint may replace the segment, but then a newer
// segment follows.
type mark struct {
	segment uint64 // the newest one that is durable, and so is its name
	size    int64  // so many bytes of it are durable
	synced  uint64 // all entries up to this number are durable
	lease   uint64
	never   bool // store.sync is never, and the daemon has not stopped cleanly
}

// marks are the newest one that may be written, and the ones in the file.
type marks struct {
	durable mark // its segment and size; guarded by WAL.writing

	// Owned by syncStep:
	written mark  // that the file has; zero: unknown
	next    mark  // what was durable at the last syncStep
	err     error // why the mark could not be written; nil: it was
}

// reach notes that a segment is durable up to a length.
func (m *mark) reach(s *segment) {
	if s.first >= m.segment {
		m.segment, m.size = s.first, s.synced
	}
}

const (
	markName  = "mark"
	markMagic = "pubsubM1"
)

func (w *WAL) markLocked() mark {
	m := w.marks.durable
	m.synced, m.lease, m.never = w.seq.synced, w.seq.lease, w.cfg.Sync == SyncNever
	return m
}

// writeMark replaces the mark, if it has changed. If that fails, the older one is still right.
// syncStep writes what was durable a second ago. So a backup that lists the folder and then links
// or opens its files within a second has all files that the mark names.
func (w *WAL) writeMark(m mark) {
	if m == w.marks.written || m.segment == 0 {
		return
	}
	err := w.replaceMark(m)
	if w.marks.written = m; err != nil {
		if w.marks.written = (mark{}); w.marks.err == nil {
			w.cfg.Logger.Warn("the mark of the log on disk could not be written; the daemon tries again", zap.Error(err))
		}
	}
	w.marks.err = err
}

func (w *WAL) replaceMark(m mark) error {
	name := markName + unfinishedSuffix
	if err := w.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	h := header{epoch: *w.epoch.Load(), lease: m.lease, synced: m.synced, never: m.never, boot: w.cfg.BootID}
	s, err := createFile(w.fs, name, markMagic, w.seed, &h)
	if err != nil {
		return err
	}
	err = s.write(appendNumber(nil, kindMark, m.segment, uint64(m.size), s.key))
	if err = errors.Join(cmp.Or(err, s.file.Sync()), s.file.Close()); err != nil {
		return errors.Join(err, w.fs.Remove(name))
	}
	return w.fs.Rename(name, markName)
}

// readMark reads the mark, and the boot id of its daemon.
func (r *recovering) readMark() (m mark, boot string, err error) {
	l, seed, err := openFile(r.wal.fs, markName, markMagic, 0)
	if err != nil {
		return m, "", err
	}
	defer l.close()
	if err := r.checkSeed(markName, seed, l.epoch); err != nil {
		return m, "", err
	}
	rec, err := l.next()
	if err != nil || rec.kind != kindMark || l.at != l.size {
		return m, "", l.bad(false, "it is not a mark")
	}
	size, err := numberIn(rec)
	return mark{rec.number, int64(size), l.synced, l.lease, l.never}, l.boot, err
}

// checkMark makes sure that the log that was read reaches as far as its mark. With "never", a
// loss of power may take the end of a log; then it is announced.
func (r *recovering) checkMark() error {
	if !r.hasMark {
		return nil // an older version wrote the log
	}
	if r.newest == nil && !r.hasCheckpoint {
		return fmt.Errorf("the folder has the file %s, but no other file of the log: %s", markName, toBeginNew)
	}
	m, boot, err := r.readMark()
	var bad *badRecord
	switch {
	case errors.As(err, &bad):
		return r.refuse(bad)
	case err != nil:
		return err
	}
	r.lease = max(r.lease, m.lease)
	switch name := fileName(m.segment, segmentSuffix); {
	case r.newest == nil || r.newest.number < m.segment:
		bad = &badRecord{file: name, why: "the file is missing, or cannot be read"}
	case r.newest.number == m.segment && r.newest.size < m.size:
		bad = &badRecord{file: name, at: r.newest.size, why: fmt.Sprintf("the file must have at least %d bytes", m.size)}
	case r.last < m.synced:
		bad = &badRecord{file: r.newest.name, at: r.newest.size, why: fmt.Sprintf("entries up to %d are missing", m.synced)}
	default:
		return nil
	}
	switch sameBoot := boot != "" && boot == r.wal.cfg.BootID && !r.syncFailed; {
	case r.wal.repairs:
		return r.refuse(bad)
	case m.never && !sameBoot:
		r.cutShort, r.closed, r.lease = true, false, r.lease+leaseUnknown
		return nil
	}
	return fmt.Errorf("the log ends early: %s, byte %d: %s. A crash cannot cause this: a file was removed or cut, or is an older copy. "+
		"Entries up to %d can be read. Put the file back, or %s. If the folder is a copy from a backup, add --restored to the repair", bad.file, bad.at, bad.why, r.last, toRepair)
}
