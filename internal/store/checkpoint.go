package store

import (
	"cmp"
	"errors"
	"io/fs"
	"iter"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// A checkpoint has the state of the broker as of one entry of the log. Older files are not
// needed any more. It is written in parts, while entries go on into a new segment. Topics
// may be newer than the checkpoint's number: the broker ignores entries that it has.
//
//	header, epochs, topic, its messages, topic, ..., keys, end
type checkpoint struct {
	file    *segment
	number  uint64 // the state is as of this entry
	from    uint64 // number of the segment that follows
	damages int    // number of failed syncs when the checkpoint began
	covered int64  // bytes of the segments that it replaces
	live    int64  // about what it has, in bytes
	begun   time.Time
	records uint64
	unsaved int    // bytes since the last sync
	buffer  []byte // of a part

	next func() (broker.Entry, bool)
	stop func()
	err  error // of the export
}

// A retry is when a checkpoint that failed is tried again.
type retry struct {
	at  time.Time     // no checkpoint begins before; zero: none has failed
	in  time.Duration // how long before that it failed
	err error         // why the last one failed; nil: it did not
}

// The size of a part, and how many bytes are written before they are synced: a sync of
// everything at the end would keep the disk busy for long.
const (
	partBytes   = 256 << 10
	unsavedMost = 8 << 20
)

// checkpointStep writes a part of a checkpoint, which it begins if one is due. It reports
// whether the checkpoint has more parts. The goroutine that calls syncStep calls it.
func (w *WAL) checkpointStep(now time.Time) (more bool) {
	var err error
	switch c := w.checkpoint; {
	case c != nil:
		more, err = c.writePart()
		w.countPart(c.file.size)
		if err == nil && !more {
			err = w.endCheckpoint(now)
		}
	case !now.Before(w.retry.at) && w.isCheckpointDue():
		more, err = true, w.beginCheckpoint(now)
	}
	if err != nil {
		if w.retry.at.IsZero() {
			w.cfg.Logger.Error("a checkpoint of the log on disk failed; the daemon tries again", zap.Error(err))
		}
		w.cfg.Metrics.Checkpoints.WithLabelValues("failed").Inc()
		w.abortCheckpoint()
		w.writing.Lock()
		w.retry.err, w.retry.in = err, min(max(2*w.retry.in, time.Second), mostRetry)
		if w.faults.damaged != nil || w.isFullLocked() { // publishes wait for it
			w.retry.in = time.Second
		}
		w.unlock()
		w.retry.at = now.Add(w.retry.in)
		w.retakeReserve(now)
		return false
	}
	return more
}

// mostRetry is the longest time until a checkpoint that failed is tried again: each time it is
// twice as long. An attempt may fill the disk, while the segments have space enough, and begins
// another segment.
const mostRetry = time.Minute

func (w *WAL) wantCheckpoint() {
	w.writing.Lock()
	defer w.unlock()
	w.wanted = true
}

// isCheckpointDue reports whether a checkpoint is wanted, or must repair the log, or
// whether the segments are larger than what they hold, or too many: each start makes one,
// however small. If store.bytes is used up, a sixteenth of it is enough, also if the
// checkpoint would be that much smaller than the newest one: for instance, topics were deleted.
// Likewise on a full disk a sixteenth of the histories, or half if only the reserve cannot grow.
func (w *WAL) isCheckpointDue() bool {
	w.writing.Lock()
	defer w.unlock()
	live, isFull := w.broker.LiveBytes(), w.isFullLocked()
	most := max(w.cfg.checkpointBytes, live)
	switch {
	case isFull:
		most = w.cfg.Bytes / 16
	case w.cfg.Bytes > 0:
		most = min(most, w.cfg.Bytes/4)
	}
	switch least := w.cfg.segmentBytes / 64; {
	case isDiskFull(w.faults.write):
		most, isFull = min(most, max(live/16, least)), true
	case isDiskFull(w.reserve.err):
		most, isFull = min(most, max(live/2, least)), true
	}
	tooMany := int64(len(w.files.segments)) > spareSegments+most/w.cfg.segmentBytes
	return w.wanted || w.faults.damaged != nil || tooMany || w.bytesLocked()-w.files.baseBytes > most || isFull && w.files.baseLive-live > most
}

// spareSegments is how many segments there may be besides full ones.
const spareSegments = 100

// evict evicts messages if a checkpoint would take more than a quarter of store.bytes. At
// most the files are an old checkpoint, the segments after it, a new one, and the segments
// after that. Topics and idempotency keys cannot be evicted. However many there are, they
// leave a quarter of that to messages.
func (w *WAL) evict() {
	most := w.cfg.Bytes / 4
	if most == 0 {
		return
	}
	messages := func() int64 { return w.broker.Memory().Of(memory.History) }
	if most = max(most-w.broker.LiveBytes()+messages(), most/4); messages() > most {
		w.broker.EvictLargest(func() bool { return messages() <= most-most/16 })
	}
}

// beginCheckpoint begins a segment, and a checkpoint of what is before it.
func (w *WAL) beginCheckpoint(now time.Time) error {
	w.evict()
	if err := w.releaseReserve(); err != nil {
		return err
	}
	c := &checkpoint{begun: now}
	heads, err := w.beginAfter(c)
	if err != nil {
		return err
	}
	return w.openCheckpoint(c, heads, &header{epoch: *w.epoch.Load()})
}

// openCheckpoint makes the file of a checkpoint, which writePart fills.
func (w *WAL) openCheckpoint(c *checkpoint, heads []broker.Entry, h *header) (err error) {
	h.number = c.number
	name := fileName(c.number, checkpointSuffix+unfinishedSuffix)
	if err := w.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if c.file, err = createFile(w.fs, name, checkpointMagic, w.seed, h); err != nil {
		return err
	}
	c.next, c.stop = iter.Pull(c.entries(w.broker, heads))
	w.checkpoint = c
	return nil
}

// beginAfter begins the segment that follows a checkpoint, and returns the heads of the
// partitions as of the checkpoint's number.
func (w *WAL) beginAfter(c *checkpoint) (heads []broker.Entry, err error) {
	w.writing.Lock()
	defer w.unlock()
	w.applying.Lock()
	defer w.applying.Unlock()
	for _, s := range w.files.untrusted {
		w.closeFile(s)
		if !s.named && s.first > w.seq.accepted { // it has no entry: each attempt to repair the log may leave one
			_ = w.fs.Remove(s.name) // the next checkpoint tries again
		}
	}
	w.files.untrusted = nil
	if w.files.current == nil || w.files.current.first <= w.seq.last {
		if err := w.beginSegmentLocked(); err != nil {
			return nil, err
		}
	}
	c.live = w.broker.LiveBytes()
	c.number, c.from, c.damages, c.covered = w.applied.Load(), w.files.current.first, w.faults.damages, w.files.oldBytes
	return heads, w.broker.ExportHeads(func(e broker.Entry) error {
		heads = append(heads, e)
		return nil
	})
}

var errStopped = errors.New("the export was stopped")

func (c *checkpoint) entries(b *broker.Broker, heads []broker.Entry) iter.Seq[broker.Entry] {
	return func(yield func(broker.Entry) bool) {
		for _, e := range heads {
			if !yield(e) {
				return
			}
		}
		c.err = b.ExportTopics(func(e broker.Entry) error {
			if !yield(e) {
				return errStopped
			}
			return nil
		})
	}
}

// writePart writes entries, and reports whether there are more.
func (c *checkpoint) writePart() (more bool, err error) {
	c.buffer = c.buffer[:0]
	for more = true; more && len(c.buffer) < partBytes; {
		var e broker.Entry
		if e, more = c.next(); more {
			c.records++
			if c.buffer, err = appendEntry(c.buffer, &e, e.Message.Position.Offset, c.file.key); err != nil {
				return false, err
			}
		}
	}
	if c.err != nil {
		return false, c.err
	}
	if !more {
		c.buffer = appendNumber(c.buffer, kindEnd, c.number, c.records, c.file.key)
	}
	if err := c.file.write(c.buffer); err != nil {
		return false, err
	}
	if c.unsaved += len(c.buffer); !more || c.unsaved >= unsavedMost {
		c.unsaved = 0
		return more, c.file.file.Sync()
	}
	return more, nil
}

// endCheckpoint gives a checkpoint its name, and removes what it replaces. The segment that
// follows must be durable before the checkpoint has its name.
func (w *WAL) endCheckpoint(now time.Time) error {
	c := w.checkpoint
	if err := w.sync(); err != nil {
		return err
	}
	if err := w.fs.Rename(c.file.name, fileName(c.number, checkpointSuffix)); err != nil {
		return err
	}
	if err := w.fs.SyncDir(); err != nil {
		return err
	}
	if !w.trust(c) {
		return errors.New("a sync of the log failed during the checkpoint")
	}
	w.checkpoint, w.retry.err, w.retry.at, w.retry.in = nil, nil, time.Time{}, 0
	c.stop()
	w.closeFile(c.file)
	w.removeBefore(c)
	w.retakeReserve(now)
	w.cfg.Metrics.Checkpoints.WithLabelValues("made").Inc()
	w.cfg.Metrics.CheckpointSeconds.Observe(now.Sub(c.begun).Seconds())
	return nil
}

// trust lets entries be written again after a failed sync, once a checkpoint is durable. It
// reports false if another sync has failed since the checkpoint began.
func (w *WAL) trust(c *checkpoint) bool {
	w.writing.Lock()
	defer w.unlock()
	if w.faults.damages != c.damages {
		return false
	}
	if w.faults.damaged != nil {
		w.removeFailedSync()
		w.cfg.Logger.Info("a checkpoint has repaired the log on disk: publishes are accepted again")
		w.faults.damaged, w.faults.write = nil, nil
	}
	w.wanted = false
	w.seq.synced = max(w.seq.synced, c.number)
	w.files.baseLive = c.live
	w.files.baseBytes, w.files.oldBytes, w.files.partBytes = c.file.size, w.files.oldBytes-c.covered, 0
	w.files.segments = slices.DeleteFunc(w.files.segments, func(number uint64) bool { return number < c.from })
	return true
}

// removeBefore removes the files that a checkpoint replaces; those of a log that is repaired only
// get another name. What cannot be removed now is removed after the next checkpoint.
func (w *WAL) removeBefore(c *checkpoint) {
	remove := w.fs.Remove
	if w.repairs {
		remove = func(name string) error { return w.fs.Rename(name, name+oldSuffix) }
	}
	names, err := w.fs.List()
	for _, name := range names {
		kind, _, number := kindOf(name)
		if kind == KindSegment && number < c.from || kind == KindCheckpoint && number < c.number {
			err = cmp.Or(remove(name), err)
		}
	}
	if err = cmp.Or(w.fs.SyncDir(), err); err != nil {
		w.cfg.Logger.Warn("old files of the log on disk could not be removed; the next checkpoint tries again", zap.Error(err))
	}
}

func (w *WAL) abortCheckpoint() {
	c := w.checkpoint
	if c == nil {
		return
	}
	w.checkpoint = nil
	c.stop()
	w.countPart(0)
	w.closeFile(c.file)
	if err := w.fs.Remove(c.file.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.cfg.Logger.Warn("an unfinished checkpoint could not be removed; the next start removes it", zap.Error(err))
	}
}

// countPart notes the size of the checkpoint that is under way.
func (w *WAL) countPart(bytes int64) {
	w.writing.Lock()
	defer w.unlock()
	if w.files.partBytes = bytes; bytes > mostReserve {
		w.faults.full = nil // the reserve is used up, so publishes do not take it
	}
}
