package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"
)

// syncStep makes durable what the mode says: with "1s" all that was written, with "never"
// only a new lease. After a failed write it tries to write. Feed calls it once a second.
func (w *WAL) syncStep(now time.Time) {
	w.evict()
	w.writing.Lock()
	if w.faults.write != nil && w.faults.damaged == nil { // as much as failed, since a full disk may still take a little
		err := w.readyLocked(0)
		if err == nil {
			lease := appendNumber(nil, kindLease, w.seq.written, w.seq.lease, w.files.current.key)
			err = w.appendLocked(bytes.Repeat(lease, max(1, (w.faults.failed+len(lease)-1)/len(lease))))
		}
		w.noteFaultLocked(err)
	}
	due := w.faults.damaged == nil && (w.cfg.Sync != SyncNever || w.seq.nextLease > 0)
	w.unlock()
	if due {
		_ = w.sync() // it was logged, and checkpointStep repairs it
	}
	w.writing.Lock()
	if w.faults.damaged == nil && w.seq.synced >= w.seq.written {
		w.seq.syncedAt = now
	}
	mark := w.marks.next
	w.marks.next = w.markLocked()
	w.unlock()
	w.writeMark(mark)
	w.keepReserve(now)
}

// sync is syncLocked while entries are written. Only one goroutine calls it.
func (w *WAL) sync() error {
	w.writing.Lock()
	j, damages := w.syncJobLocked(), w.faults.damages
	w.unlock()
	err := w.runSync(j)
	w.writing.Lock()
	defer w.unlock()
	if w.faults.damages != damages {
		w.noteSyncFailure()
		return w.faults.damaged // the files of the job are not trusted any more
	}
	if err := w.endSyncLocked(j, err); err != nil {
		return err
	}
	w.closeOldLocked()
	return nil
}

// syncLocked makes everything durable that was written, while entries wait.
func (w *WAL) syncLocked() error {
	j := w.syncJobLocked()
	return w.endSyncLocked(j, w.runSync(j))
}

// A syncJob makes files durable.
type syncJob struct {
	files  []*segment
	sizes  []int64 // of the files, when the job began
	names  bool    // the folder, too
	number uint64  // then all entries up to this number are durable
	lease  uint64  // and this lease, unless 0
}

// syncJobLocked returns a job for everything that was written.
func (w *WAL) syncJobLocked() syncJob {
	j := syncJob{number: w.seq.written, lease: w.seq.nextLease}
	for _, s := range w.files.unsynced {
		if s.size > s.synced || !s.named {
			j.files, j.sizes, j.names = append(j.files, s), append(j.sizes, s.size), j.names || !s.named
		}
	}
	return j
}

// runSync does a job, unless a sync has failed whose failure is not noted yet. The operating
// system tells only one of two syncs of a file that it could not write: so there is one at a
// time, and the second one learns of the failure of the first.
func (w *WAL) runSync(j syncJob) error {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	if w.syncFailure != nil || len(j.files) == 0 {
		return w.syncFailure
	}
	begun, name := time.Now(), "the folder of the log"
	var err error
	for _, s := range j.files { // the oldest first
		if err = s.file.Sync(); err != nil {
			name = s.name
			break
		}
	}
	if err == nil && j.names {
		err = w.fs.SyncDir()
	}
	w.cfg.Metrics.SyncSeconds.Observe(time.Since(begun).Seconds())
	if err != nil {
		w.cfg.Metrics.SyncFailures.Inc()
		w.syncFailure = fmt.Errorf("sync %s: %w", name, err)
	}
	return w.syncFailure
}

// endSyncLocked takes the result of a job.
func (w *WAL) endSyncLocked(j syncJob, err error) error {
	if err != nil {
		w.damageLocked(err)
		return w.faults.damaged
	}
	for i, s := range j.files {
		s.synced, s.named = max(s.synced, j.sizes[i]), true
		w.marks.durable.reach(s)
	}
	if w.faults.damaged == nil { // else what is in older files is durable once a checkpoint is
		w.seq.synced = max(w.seq.synced, j.number)
	}
	if w.seq.lease = max(w.seq.lease, j.lease); w.seq.nextLease <= w.seq.lease {
		w.seq.nextLease = 0
	}
	return nil
}

// closeOldLocked closes segments that are durable and not current. No sync is under way.
func (w *WAL) closeOldLocked() {
	kept := w.files.unsynced[:0]
	for _, s := range w.files.unsynced {
		if s == w.files.current || s.size > s.synced || !s.named {
			kept = append(kept, s)
		} else {
			w.closeFile(s)
		}
	}
	clear(w.files.unsynced[len(kept):])
	w.files.unsynced = kept
}

func (w *WAL) closeFile(s *segment) {
	if err := s.file.Close(); err != nil { // it is durable, or not trusted
		w.cfg.Logger.Warn("a segment of the log on disk could not be closed", zap.String("file", s.name), zap.Error(err))
	}
}

var errDamaged = errors.New("a sync failed")

// damageLocked notes that a sync failed: the operating system may have dropped what it could
// not write. No file that was not durable is used again.
func (w *WAL) damageLocked(err error) {
	if w.faults.damaged == nil {
		w.cfg.Logger.Error("a sync of the log on disk failed: publishes are refused until a new checkpoint is durable", zap.Error(err))
	}
	w.faults.damaged, w.faults.damages = fmt.Errorf("%w: %w", errDamaged, err), w.faults.damages+1
	w.noteSyncFailure()
	if f, err := w.fs.Create(failedSyncName); err == nil { // it may exist, and a disk that fails need not take it
		_ = f.Close() // it is empty
	}
	w.leaveSegmentLocked()
	w.files.untrusted = append(w.files.untrusted, w.files.unsynced...)
	w.files.unsynced, w.seq.written, w.seq.nextLease = nil, w.seq.accepted, 0
	signal(w.grown)
}

// failedSyncName is the file that a daemon creates when a sync fails. After a failed sync
// the operating system may have dropped written data. If the daemon is killed before a new
// checkpoint is durable, this file makes the next start treat the log as after a power
// loss. The file is not synced: a power loss, which has the same effect, may undo it.
const failedSyncName = "failed-sync"

func (w *WAL) removeFailedSync() {
	if err := w.fs.Remove(failedSyncName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.cfg.Logger.Warn("the file failed-sync could not be removed: remove it, or a start after a crash announces lost messages", zap.Error(err))
	}
}

// noteSyncFailure lets files be synced again: the failure is noted.
func (w *WAL) noteSyncFailure() {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	w.syncFailure = nil
}
