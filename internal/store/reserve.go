package store

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"time"
)

// The reserve is a file that takes space on the disk: as much as the header of a new segment
// and the next checkpoint, but at most mostReserve. When the disk is full, a checkpoint gets that space, because only a
// checkpoint frees more. The content of the file has no meaning. A start removes it, and
// makes a new one.
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
	if w.repairs || w.checkpoint != nil || w.reserve.size >= least && w.reserveErr == nil || now.Before(w.reserveAt) {
		return
	}
	if w.reserveErr = w.growReserve(min(least+least/4, mostReserve)); w.reserveErr != nil {
		w.reserveAt = now.Add(mostRetry)
		_ = w.growReserve(least) // it may fail likewise
	}
	w.noteReserve()
}

func (w *WAL) noteReserve() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Reserve = w.reserve.size
}

// growReserve writes to the reserve. After an error, it is as before.
func (w *WAL) growReserve(size int64) (err error) {
	s, before := &w.reserve, w.reserve.size
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
	for _, err := range []error{w.damaged, w.fault, w.checkpointErr, w.reserveErr} {
		if isDiskFull(err) {
			w.full = err
		}
	}
	if w.reserve.file == nil || w.full == nil {
		return nil
	}
	w.reserve.size = 0
	w.noteReserve()
	return w.reserve.file.Truncate(0)
}

// retakeReserve ends releaseReserve: the checkpoint is durable, or has failed and was removed.
func (w *WAL) retakeReserve(now time.Time) {
	w.reserveAt = time.Time{}
	w.keepReserve(now)
	w.writing.Lock()
	defer w.unlock()
	w.full = nil
}
