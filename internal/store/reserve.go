package store

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"time"
)

// A reserve is a file that takes space on the disk: as much as the header of a new segment
// and the next checkpoint, but at most mostReserve. When the disk is full, a checkpoint gets that space, because only a
// checkpoint frees more. The content of the file has no meaning. A start removes it, and
// makes a new one.
type reserve struct {
	segment           // has no file at first
	err     error     // why it could not grow; nil: it could
	at      time.Time // it does not grow before
}

const (
	reserveName = "reserve"
	mostReserve = 64 << 20
)

// isDiskFull reports whether a call failed because of space, a quota, or a limit of the process.
func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// keepReserve makes the reserve large enough, and a little larger. If the disk has no space for
// that, a checkpoint may be due. Attempts are rare, since each takes the last space for a moment.
func (w *WAL) keepReserve(now time.Time) {
	blocks := headerMost + w.cfg.segmentBytes/512 // each file fills its last block in part
	least := min(w.broker.LiveBytes()+blocks, mostReserve)
	if w.repairs || w.checkpoint != nil || w.reserve.size >= least && w.reserve.err == nil || now.Before(w.reserve.at) {
		return
	}
	if w.reserve.err = w.growReserve(min(least+least/4, mostReserve)); w.reserve.err != nil {
		w.reserve.at = now.Add(mostRetry)
		_ = w.growReserve(least) // it may fail likewise
	}
	w.noteReserve()
}

func (w *WAL) noteReserve() {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	w.queue.stats.Reserve = w.reserve.size
}

// growReserve writes to the reserve. After an error, it is as before.
func (w *WAL) growReserve(size int64) (err error) {
	s, before := &w.reserve.segment, w.reserve.size
	size = max(size, before)
	if s.file == nil {
		s.name = reserveName
		if s.file, err = w.fs.Create(reserveName); err != nil {
			return err
		}
	}
	noise := make([]byte, min(size-before, partBytes)) // a file system may compress other bytes
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)     // it never fails
	for err == nil && s.size < size {
		err = s.write(noise[:min(size-s.size, partBytes)])
	}
	if err != nil {
		s.size = before
		return errors.Join(err, s.file.Truncate(before))
	}
	return nil
}

// releaseReserve gives the space of the reserve to a checkpoint, if the disk is full. No entries
// are written until the checkpoint ends: they would take that space.
func (w *WAL) releaseReserve() error {
	w.writing.Lock()
	defer w.unlock()
	for _, err := range []error{w.faults.damaged, w.faults.write, w.retry.err, w.reserve.err} {
		if isDiskFull(err) {
			w.faults.full = err
		}
	}
	if w.reserve.file == nil || w.faults.full == nil {
		return nil
	}
	w.reserve.size = 0
	w.noteReserve()
	return w.reserve.file.Truncate(0)
}

// retakeReserve ends releaseReserve: the checkpoint is durable, or has failed and was removed.
func (w *WAL) retakeReserve(now time.Time) {
	w.reserve.at = time.Time{}
	w.keepReserve(now)
	w.writing.Lock()
	defer w.unlock()
	w.faults.full = nil
}
