package store

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// begin begins a segment. It has what was found about the end of the log: a start that
// crashes before it is durable has changed nothing.
func (r *recovering) begin(now time.Time) error {
	if err := r.wal.fs.Remove(reserveName); err != nil && !errors.Is(err, fs.ErrNotExist) { // the segment may need its space
		return err
	}
	h := header{always: r.wal.cfg.Sync == SyncAlways, boot: r.wal.cfg.BootID}
	for _, s := range r.chain {
		h.copied = max(h.copied, s.newest)
	}
	switch {
	case r.newest == nil && !r.hasCheckpoint:
		w, epoch := r.wal, r.wal.broker.Epoch(">")
		w.seed, r.Epoch, r.segments = w.cfg.Seed(), epoch, nil
		w.epoch.Store(&epoch)
		err := w.removeAllBut("") // what no log has
		if err == nil && r.Used && w.cfg.Sync != SyncStop {
			err = w.fs.Remove(UsedName)
		}
		if err != nil {
			return err
		}
	case r.Clean && !r.wal.repairs:
		h.prev = r.last
	case r.wal.cfg.Sync == SyncStop: // it cannot announce what is lost at offsets that each topic counts for itself
		return errors.New("store.sync: stop cannot continue from a log whose daemon has crashed: start the daemon with another store.sync, and stop it, before you change to stop")
	default:
		if err := r.continueAfterCrash(&h); err != nil {
			return err
		}
	}
	if r.lost > 0 && r.lost == r.last {
		r.Lost = r.lost // perhaps an earlier start found that, and failed
	}
	if r.wal.cfg.Sync == SyncStop {
		return r.use(now)
	}
	h.synced = h.prev
	if err := r.beginSegment(&h, now); err != nil {
		return err
	}
	return r.keepState(now)
}

// continueAfterCrash decides where the log continues. With "always", nothing that was visible is
// lost; but what was cut may have been visible, and damaged later.
func (r *recovering) continueAfterCrash(h *header) error {
	h.prev = min(r.last, r.proven)
	if r.wal.repairs {
		h.prev, h.copied = r.last, 0
	}
	r.wal.seq.last = r.lease // also with the same boot: a volume may have lost its tail while the kernel ran on
	if r.mayHaveLost() {
		if err := r.lose(r.lease); err != nil {
			return err
		}
	}
	if r.lost > h.prev {
		h.lost = r.lost
	}
	return nil
}

// beginSegment begins the segment with that header. It has its name once it is durable.
func (r *recovering) beginSegment(h *header, now time.Time) error {
	w := r.wal
	w.writing.Lock()
	defer w.unlock()
	w.files.baseBytes, w.files.baseLive, w.files.newest = r.base, r.base, max(w.seq.last, r.last)
	for _, s := range r.segments {
		w.files.newest = max(w.files.newest, s.number)
		w.files.oldBytes, w.files.segments = w.files.oldBytes+s.size, append(w.files.segments, s.number)
	}
	w.files.newest = max(w.files.newest, w.broker.PatternPosition(">").Offset) // the broker counts topics that it could not hold
	w.files.newest++
	w.seq.last, w.seq.written, w.seq.told = w.files.newest-1, r.last, h.synced
	w.seq.accepted = r.last
	w.applied.Store(r.last)
	h.number, h.epoch, h.lease = w.files.newest, r.Epoch, max(r.lease, w.seq.last+w.cfg.leaseNumbers)
	s, err := createFile(w.fs, fileName(h.number, segmentSuffix+unfinishedSuffix), segmentMagic, w.seed, h)
	if err != nil {
		return err
	}
	w.files.unsynced, w.files.segments = []*segment{s}, append(w.files.segments, h.number)
	if h.prev < r.last {
		if err := r.copyAfter(h.prev, s); err != nil {
			return err
		}
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", s.name, err)
	}
	name := fileName(h.number, segmentSuffix)
	if err := w.fs.Rename(s.name, name); err != nil {
		return err
	}
	s.name = name
	if err := w.fs.SyncDir(); err != nil {
		return fmt.Errorf("sync the folder: %w", err)
	}
	s.synced, s.named, w.seq.synced, w.seq.lease, w.files.current, w.seq.syncedAt = s.size, true, r.last, h.lease, s, now
	w.marks.durable.reach(s)
	if r.syncFailed {
		w.removeFailedSync()
	}
	return nil
}

// copyAfter copies the entries after a number to a segment.
func (r *recovering) copyAfter(number uint64, to *segment) error {
	var b []byte
	for _, s := range r.chain {
		if s.newest <= number {
			continue
		}
		l, _, err := openFile(r.wal.fs, s.name, segmentMagic, s.number)
		if err != nil {
			return err
		}
		for err == nil && number < s.newest {
			var rec record
			if rec, err = l.next(); err != nil || !rec.kind.IsEntry() || rec.number <= number {
				continue
			}
			number, b = rec.number, appendRecord(b, rec, to.key)
			if number == s.newest || len(b) >= readBufferBytes {
				err, b = to.write(b), b[:0]
			}
		}
		if err = errors.Join(err, l.reader.Close()); err != nil {
			return err
		}
	}
	return nil
}

// appendRecord appends a record that was read from another file.
func appendRecord(b []byte, r record, key uint32) []byte {
	start := len(b)
	b = append(append(b, noHead[:]...), r.body...)
	_ = endRecord(b, start, r.kind, r.number, key) // its length was checked
	return b
}

// keepState makes a checkpoint of a repaired log, and in place of a StopLog's, which would be the
// whole log if the segments after it were lost. For another log it does so only if the disk has no
// space for the reserve, before entries take what is left.
func (r *recovering) keepState(now time.Time) error {
	w := r.wal
	if !w.repairs && !r.final {
		w.keepReserve(now)
		for isDiskFull(w.reserve.err) && (w.stopped == nil || w.stopped() == nil) && w.checkpointStep(now) {
		}
		return nil
	}
	w.wantCheckpoint()
	for w.checkpointStep(now) {
	}
	if w.wanted {
		return fmt.Errorf("the first checkpoint could not be written: %w", w.retry.err)
	}
	return nil
}
