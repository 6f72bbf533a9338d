package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Recovery says what the start of a log found.
type Recovery struct {
	Epoch    string
	Last     uint64        // newest entry that was recovered
	Lost     uint64        // unless 0, entries up to this number may be lost, and no entry was written since
	Records  int           // that were read
	Bytes    int64         // that were read
	Cut      int64         // bytes after Last that are ignored: incomplete records, and all that follows
	CutFile  string        // the file where they begin; empty: none
	Damage   []Damage      // of a log that is repaired: why a start would refuse it
	Clean    bool          // the last daemon stopped cleanly
	SameBoot bool          // the boot id is that of the last daemon, and no sync had failed
	Took     time.Duration // of the clock that open gets
}

// open locks the folder, reads the log, applies its entries, and begins a segment. An error
// says why the daemon must not start. Then the lock was released.
func (w *WAL) open(apply func(broker.Entry) error, now time.Time) error {
	begun := time.Now()
	lock, err := w.fs.Lock()
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	w.lock, w.apply = lock, apply
	r := &recovering{wal: w}
	if err = r.run(now); err != nil {
		w.abandon()
		t, _, repaired := w.repairable()
		return fmt.Errorf("store: %w%s%s", err, diskRemedy(err), t.wouldKeep(&repaired))
	}
	w.broker.KeepTopics(now.Add(keepTopics))
	r.Took = time.Since(begun)
	w.cfg.Recovered(r.Recovery)
	return nil
}

// diskRemedy is the remedy for a disk that a start cannot write to, or is empty.
func diskRemedy(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return " (free space on the disk of store.dir; the next start needs some, and later frees what it can)"
	case errors.Is(err, syscall.EROFS):
		return " (mount the disk of store.dir so that it can be written)"
	}
	return ""
}

// keepTopics is how long topics are not forgotten after a start, so that clients can
// reconnect to them.
const keepTopics = time.Minute

// recovering reads a log.
//
// The state is the newest checkpoint, and the entries after it, in order. The header of each
// segment has the last entry of the log before the segment. Later entries in older segments
// are not part of the log: for instance, their write failed.
//
// After a crash the end of the log may be incomplete. If the boot id is the same, all writes
// are there. Only the last record may be partial, and no subscriber got its entry. If the
// boot id differs, the log ends before the first bad record. But if a later record says that
// more of the log was durable, a disk or a program has damaged the log. Then the start is
// refused, and the operator must decide.
//
// A start begins a segment, and copies entries into it that may not be durable. A sync of
// the old file may have failed, and the operating system reports a failed sync only once.
type recovering struct {
	Recovery
	wal      *WAL
	readOnly bool // Verify and Export

	segments      []*segmentFile // in order
	newest        *segmentFile   // the newest one with a header, or nil
	hasCheckpoint bool
	checkpoint    uint64 // number of the newest one
	syncFailed    bool   // see failedSyncName
	hasSeed       bool
	lease         uint64
	last          uint64 // number of the newest entry that was read
	proven        uint64 // entries up to this one were durable
	lost          uint64 // of the newest header that says that entries were lost
	closed        bool   // the last record that was read is the clean end
	chain         []*segmentFile
	discard       []string // files of a log that was not begun
	base          int64    // bytes of the checkpoint
	all, reported int64    // bytes to read, and at the last call of Progress
}

// A segmentFile is a segment that was found.
type segmentFile struct {
	header
	name string
	size int64
	bad  *badRecord // why it has no header; nil: it has one

	newest uint64 // number of the newest entry that was read
}

func (r *recovering) run(now time.Time) error {
	if err := r.read(); err != nil {
		return err
	}
	if err := r.begin(now); err != nil {
		return err
	}
	return r.keepState(now)
}

// read reads the log, and applies its entries.
func (r *recovering) read() error {
	for _, part := range []func() error{r.list, r.readHeaders, r.readAll} {
		if err := part(); err != nil {
			return err
		}
	}
	if r.wal.repairs {
		r.lease = max(r.lease, r.last) + leaseUnknown
	}
	r.Clean, r.Last = r.closed || r.newest == nil, r.last
	return nil
}

// hasLog reports whether a folder has a log.
func hasLog(files FS) (bool, error) {
	lock, err := files.Lock()
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	r := &recovering{wal: &WAL{fs: files}, readOnly: true}
	if err := cmp.Or(r.list(), r.readHeaders()); err != nil {
		return false, err
	}
	return r.hasBegun(), nil
}

// list finds the files, and removes unfinished ones.
func (r *recovering) list() error {
	names, err := r.wal.fs.List()
	if err != nil {
		return err
	}
	for _, name := range names { // in order
		segment, isSegment := numberOf(name, segmentSuffix)
		checkpoint, isCheckpoint := numberOf(name, checkpointSuffix)
		switch {
		case isSegment:
			r.segments = append(r.segments, &segmentFile{name: name, header: header{number: segment}})
		case isCheckpoint:
			r.hasCheckpoint, r.checkpoint = true, checkpoint
		case name == failedSyncName:
			r.syncFailed = true
		case strings.HasSuffix(name, unfinishedSuffix) && !r.readOnly:
			if err := r.wal.fs.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// readHeaders reads the headers of all segments. One without a header is not part of the
// log, unless its neighbours say that entries are missing.
func (r *recovering) readHeaders() error {
	for _, s := range r.segments {
		l, seed, err := openFile(r.wal.fs, s.name, segmentMagic, s.number)
		if l != nil {
			s.size = l.size
		}
		if errors.As(err, &s.bad) {
			continue
		}
		if err != nil {
			return err
		}
		s.header = l.header
		if err := errors.Join(l.reader.Close(), r.checkSeed(s.name, seed, s.epoch)); err != nil {
			return err
		}
		r.newest, r.lease, r.proven, r.all = s, max(r.lease, s.lease), max(r.proven, s.synced), r.all+s.size
	}
	if r.hasBegun() {
		return nil
	}
	r.newest, r.hasSeed, r.lease, r.proven = nil, false, 0, 0
	return r.checkEmpty()
}

// hasBegun reports whether there is a log. If a start crashes while it writes a checkpoint of
// what a state file had, there is none yet.
func (r *recovering) hasBegun() bool {
	return r.hasCheckpoint || r.newest != nil && !(r.newest.first && r.newest.size <= headerMost)
}

// checkSeed makes sure that all files are of one log.
func (r *recovering) checkSeed(name string, seed uint64, epoch string) error {
	if !r.hasSeed {
		r.hasSeed, r.wal.seed, r.Epoch = true, seed, epoch
		r.wal.epoch.Store(&epoch)
		return nil
	}
	if seed != r.wal.seed || epoch != r.Epoch {
		return fmt.Errorf("%s belongs to another log than the other files: move the files of one log to another folder", name)
	}
	return nil
}

// readAll reads the checkpoint, and the segments after it.
func (r *recovering) readAll() error {
	if r.newest == nil && !r.hasCheckpoint {
		return nil
	}
	if err := r.beginEpoch(); err != nil {
		return err
	}
	if r.hasCheckpoint {
		if err := r.readCheckpoint(fileName(r.checkpoint, checkpointSuffix)); err != nil {
			return err
		}
	}
	if len(r.Damage) > 0 && r.hasSeed { // of the checkpoint; the log is repaired
		if err := r.lose(r.checkpoint); err != nil {
			return err
		}
	}
	if !r.hasSeed {
		return errors.New("no file of the log can be read: restore the folder from a backup, or empty the folder to begin a new log")
	}
	r.last, r.proven = r.checkpoint, max(r.checkpoint, r.proven)
	if err := r.findChain(); err != nil {
		return err
	}
	if r.newest == nil { // the log is repaired
		return nil
	}
	r.SameBoot = r.newest.boot != "" && r.newest.boot == r.wal.cfg.BootID && !r.syncFailed
	if err := r.readChain(); err != nil {
		return err
	}
	return r.checkHeaderless()
}

// leaseUnknown is how far a repair goes above all numbers that it reads. The daemon may have
// used numbers above the lease: in what is damaged, or after a backup was made.
const leaseUnknown = 1 << 32

// beginEpoch begins the epoch of the log, once it is known.
func (r *recovering) beginEpoch() error {
	if !r.hasSeed {
		return nil
	}
	return r.apply(broker.Entry{Op: broker.OpEpoch, Message: &wire.Message{}, State: &broker.State{}})
}

// readChain reads the segments after the checkpoint.
func (r *recovering) readChain() error {
	for i, s := range r.chain {
		later := r.chain[i+1:]
		ended, err := r.readSegment(s, later)
		switch {
		case err != nil:
			return err
		case ended && r.wal.repairs && len(later) > 0 && later[0].prev > r.last:
			if err := r.lose(later[0].prev); err != nil {
				return err
			}
		case ended && !r.wal.repairs:
			for _, s := range later {
				r.Cut += s.size
			}
			return nil
		}
	}
	if r.last < r.proven {
		return r.refuse(&badRecord{file: r.newest.name, at: r.newest.size, why: fmt.Sprintf("entries up to %d are missing", r.proven)})
	}
	return nil
}

// apply applies an entry of this log's epoch.
func (r *recovering) apply(e broker.Entry) error {
	e.Message.Position.Epoch = r.Epoch
	return r.wal.apply(e)
}

// headerMost is more than the bytes of a head and a header.
const headerMost = 256

// checkEmpty makes sure that no file had an entry: at most, a first start made a segment. That
// has its name only since its header is durable.
func (r *recovering) checkEmpty() error {
	for _, s := range r.segments {
		if s.size > headerMost || s.size > 0 && s.bad != nil {
			return fmt.Errorf("%s has %d bytes, but no file has the beginning of the log: restore the folder from a backup, or empty the folder to begin a new log", s.name, s.size)
		}
		r.discard = append(r.discard, s.name)
	}
	return nil
}

// findChain finds the segments that have the log after the checkpoint.
func (r *recovering) findChain() error {
	end := uint64(math.MaxUint64)
	for _, s := range slices.Backward(r.segments) {
		if s.bad == nil && s.prev < end {
			r.chain, end = append(r.chain, s), s.prev
		}
		if end <= r.checkpoint {
			slices.Reverse(r.chain)
			return nil
		}
	}
	switch {
	case r.wal.repairs && len(r.chain) > 0:
		slices.Reverse(r.chain)
		_ = r.refuse(&badRecord{file: r.chain[0].name, why: fmt.Sprintf("the file before it, up to entry %d, is missing", end)})
		return r.lose(end)
	case r.wal.repairs:
		return r.refuse(&badRecord{file: fileName(r.checkpoint, checkpointSuffix), why: "the segment after it is missing"})
	case len(r.chain) == 0:
		return fmt.Errorf("the checkpoint has the entries up to %d, but the segment after it is missing: %s", r.checkpoint, remedy)
	}
	return fmt.Errorf("%s continues after entry %d, but the file before it is missing: %s", r.chain[len(r.chain)-1].name, end, remedy)
}

const remedy = "put the file back, restore the folder from a backup, or run `pubsubd store repair DIR`, which keeps what can be read and announces the rest as lost"

// refuse returns why the daemon must not start, or nil if the log is repaired.
func (r *recovering) refuse(bad *badRecord) error {
	if r.wal.repairs {
		r.wal.cfg.Logger.Warn("a part of the log on disk is lost", zap.Error(bad))
		r.Damage = append(r.Damage, Damage{bad.file, bad.at, bad.why})
		return nil
	}
	return fmt.Errorf("%w. A crash cannot cause this: the disk or a program has damaged the file. Entries up to %d can be read. "+
		"Restore the folder from a backup, or run `pubsubd store repair DIR`, which keeps what can be read and announces the rest as lost", bad, r.last)
}

// readSegment reads a segment, up to where the next one begins. It reports whether the log
// ends within it.
func (r *recovering) readSegment(s *segmentFile, later []*segmentFile) (ended bool, err error) {
	l, _, err := openFile(r.wal.fs, s.name, segmentMagic, s.number)
	if err != nil {
		return false, err
	}
	defer l.close()
	r.closed = false
	end := uint64(maxOffset)
	if len(later) > 0 {
		end = later[0].prev
	}
	err = r.readRecords(l, end)
	s.newest = l.newest
	var bad *badRecord
	if err != nil && !errors.As(err, &bad) {
		return false, err
	}
	if r.last < min(s.copied, end) {
		bad = cmp.Or(bad, l.badEnd("entries up to %d should follow", s.copied))
		if err := r.refuse(bad); err != nil {
			return false, err
		}
	}
	if s.lost > r.last {
		if err := r.lose(s.lost); err != nil {
			return false, err
		}
	}
	switch {
	case len(later) > 0 && r.last == end, len(later) == 0 && bad == nil:
		return false, nil
	case bad == nil && r.headerless(s, later[0]) != nil:
		bad = r.headerless(s, later[0])
	case bad == nil:
		bad = l.badEnd("the file ends after entry %d, but %s continues after entry %d", r.last, later[0].name, end)
	}
	r.CutFile, r.Cut = s.name, l.size-bad.at
	return true, r.mayEnd(bad, l.key, later)
}

// headerless returns why a segment between two others has no header, or nil.
func (r *recovering) headerless(before, after *segmentFile) *badRecord {
	for _, s := range r.segments {
		if s.bad != nil && before.number < s.number && s.number < after.number {
			return s.bad
		}
	}
	return nil
}

// readRecords reads the records of a segment, up to an entry. The error is nil if it has
// come to that, or to the end of the file.
func (r *recovering) readRecords(l *logFile, end uint64) error {
	for {
		at := l.at
		rec, err := l.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.Records++
		if err := r.report(l.at - at); err != nil {
			return err
		}
		r.closed = rec.kind == kindClosed
		switch {
		case rec.kind == kindSynced || rec.kind == kindClosed:
			r.proven = max(r.proven, rec.number)
		case rec.kind == kindLease:
			var lease uint64 // 0 with an error
			lease, err = numberIn(rec)
			r.lease = max(r.lease, lease)
		case rec.number > end:
			return nil
		default:
			err = r.takeEntry(rec, l)
		}
		if err != nil {
			return r.damage(l, at, err)
		}
	}
}

// damage returns why a record that was read is not valid. To repair the log, it is a bad one.
func (r *recovering) damage(l *logFile, at int64, why error) error {
	bad := &badRecord{file: l.file, at: at, why: why.Error()}
	if r.wal.repairs {
		return bad
	}
	return r.refuse(bad)
}

// takeEntry applies an entry of a segment, unless the checkpoint has it.
func (r *recovering) takeEntry(rec record, l *logFile) error {
	if least := max(l.prev, l.newest); rec.number <= least {
		return fmt.Errorf("entry %d follows entry %d", rec.number, least)
	}
	l.newest = rec.number
	if l.lost > r.last && l.lost < rec.number {
		if err := r.lose(l.lost); err != nil {
			return err
		}
	}
	if rec.number <= r.last {
		return nil
	}
	e, err := rec.entry(r.Epoch)
	if err != nil {
		return err
	}
	r.last = rec.number
	return r.apply(e)
}

// lose applies that entries up to a number may be lost.
func (r *recovering) lose(upTo uint64) error {
	r.last, r.lost = upTo, upTo
	return r.apply(broker.Entry{
		Op:      broker.OpEpoch,
		Message: &wire.Message{Position: wire.Position{Offset: upTo}},
		State:   &broker.State{Forgotten: upTo, Lost: upTo},
	})
}

// report calls Progress for each MiB. The error says that the daemon was told to stop.
func (r *recovering) report(bytes int64) error {
	r.Bytes += bytes
	if r.Bytes-r.reported < 1<<20 {
		return nil
	}
	r.reported = r.Bytes
	r.wal.cfg.Progress(r.Bytes, max(r.Bytes, r.all))
	if r.wal.stopped == nil {
		return nil
	}
	return r.wal.stopped()
}

// mayEnd decides whether the log may end before a bad record: see recovering.
func (r *recovering) mayEnd(bad *badRecord, key uint32, later []*segmentFile) error {
	torn := bad.partial && len(later) == 0
	if r.SameBoot && torn && !r.wal.repairs {
		return nil
	}
	found, err := findNotices(r.wal.fs, bad.file, key)
	if err != nil {
		return err
	}
	durable := r.SameBoot && !torn || bad.at < found.length || r.last < found.synced
	r.lease = max(r.lease, found.lease)
	for _, s := range later {
		found, err := findNotices(r.wal.fs, s.name, keyOfFile(r.wal.seed, s.number))
		if err != nil {
			return err
		}
		durable = durable || r.last < max(s.synced, found.synced)
		r.lease = max(r.lease, found.lease)
	}
	if durable {
		return r.refuse(bad)
	}
	return nil
}

// checkHeaderless checks segments without a header that are newer than all others: the
// daemon made one just before the crash. If it was used, the start is refused.
func (r *recovering) checkHeaderless() error {
	for _, s := range r.segments {
		if s.bad == nil || s.number < r.newest.number {
			continue
		}
		found, err := findNotices(r.wal.fs, s.name, keyOfFile(r.wal.seed, s.number))
		if err != nil {
			return err
		}
		r.CutFile, r.Cut = cmp.Or(r.CutFile, s.name), r.Cut+s.size
		r.lease = max(r.lease, found.lease)
		if found.length > 0 || r.SameBoot && !s.bad.partial {
			if err := r.refuse(s.bad); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin begins a segment. It has what was found about the end of the log: a start that
// crashes before it is durable has changed nothing.
func (r *recovering) begin(now time.Time) error {
	h := header{always: r.wal.cfg.Sync == SyncAlways, boot: r.wal.cfg.BootID}
	for _, s := range r.chain {
		h.copied = max(h.copied, s.newest)
	}
	switch {
	case r.newest == nil && !r.hasCheckpoint:
		if err := r.beginLog(&h); err != nil {
			return err
		}
	case r.Clean && !r.wal.repairs:
		h.prev = r.last
	default:
		if err := r.continueAfterCrash(&h); err != nil {
			return err
		}
	}
	if r.lost > 0 && r.lost == r.last {
		r.Lost = r.lost // perhaps an earlier start found that, and failed
	}
	h.synced = h.prev
	return r.beginSegment(&h, now)
}

// continueAfterCrash decides where the log continues. With "always", nothing that was visible is
// lost; but what was cut may have been visible, and damaged later.
func (r *recovering) continueAfterCrash(h *header) error {
	h.prev = min(r.last, r.proven)
	if r.wal.repairs {
		h.prev, h.copied = r.last, 0
	}
	r.wal.last = r.lease // also with the same boot: a volume may have lost its tail while the kernel ran on
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

// mayHaveLost reports whether entries that were visible may be missing at the end of the log.
func (r *recovering) mayHaveLost() bool {
	return r.wal.repairs || !r.Clean && !r.SameBoot && (!r.newest.always || r.Cut > 0)
}

// beginSegment begins the segment with that header. It has its name once it is durable.
func (r *recovering) beginSegment(h *header, now time.Time) error {
	w := r.wal
	w.writing.Lock()
	defer w.unlock()
	w.baseBytes, w.baseLive, w.newest = r.base, r.base, max(w.last, r.last)
	for _, s := range r.segments {
		w.newest = max(w.newest, s.number)
		w.oldBytes, w.segments = w.oldBytes+s.size, append(w.segments, s.number)
	}
	w.newest = max(w.newest, w.broker.PatternPosition(">").Offset) // the broker counts topics that it could not hold
	w.newest++
	w.last, w.written, w.told = w.newest-1, r.last, h.synced
	w.applied.Store(r.last)
	h.number, h.epoch, h.lease = w.newest, r.Epoch, max(r.lease, w.last+w.cfg.leaseNumbers)
	s, err := createFile(w.fs, fileName(h.number, segmentSuffix+unfinishedSuffix), segmentMagic, w.seed, h)
	if err != nil {
		return err
	}
	w.unsynced, w.segments = []*segment{s}, append(w.segments, h.number)
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
	s.synced, s.named, w.synced, w.lease, w.current, w.syncedAt = s.size, true, r.last, h.lease, s, now
	if r.syncFailed {
		w.removeFailedSync()
	}
	return nil
}

// copyAfter copies the entries after a number to a new segment.
func (r *recovering) copyAfter(number uint64, to *segment) error {
	for _, s := range r.chain {
		if s.newest <= number {
			continue
		}
		l, _, err := openFile(r.wal.fs, s.name, segmentMagic, s.number)
		if err == nil {
			err = errors.Join(l.copyEntries(number, s.newest, to), l.reader.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beginLog begins a new log, in the epoch of the broker. Its numbers are above all those
// that the broker has from a state file.
func (r *recovering) beginLog(h *header) error {
	w := r.wal
	for _, name := range r.discard {
		if err := w.fs.Remove(name); err != nil {
			return err
		}
	}
	r.segments = nil
	epoch := w.broker.Epoch(">")
	w.seed, r.Epoch, r.Clean = w.cfg.Seed(), epoch, true
	w.epoch.Store(&epoch)
	err := w.broker.Export(func(e broker.Entry) error {
		r.last = max(r.last, e.Message.Position.Offset)
		if e.State != nil {
			r.last = max(r.last, e.State.Forgotten)
		}
		return nil
	})
	h.prev, h.first = r.last, r.last > 0
	return err
}

// keepState makes a checkpoint of what a new log begins with, or a repaired one.
func (r *recovering) keepState(now time.Time) error {
	w := r.wal
	if !r.wal.repairs && (r.newest != nil || w.applied.Load() == 0) {
		return nil
	}
	w.wanted = true
	for w.checkpointStep(now) {
	}
	if w.wanted {
		return fmt.Errorf("the first checkpoint could not be written: %w", w.checkpointErr)
	}
	return nil
}

// readCheckpoint reads a checkpoint.
func (r *recovering) readCheckpoint(name string) error {
	l, seed, err := openFile(r.wal.fs, name, checkpointMagic, r.checkpoint)
	var bad *badRecord
	if errors.As(err, &bad) {
		return r.refuse(bad)
	}
	if err != nil {
		return err
	}
	defer l.close()
	r.base, r.all = l.size, r.all+l.size
	if err := cmp.Or(r.checkSeed(name, seed, l.epoch), r.beginEpoch()); err != nil {
		return err
	}
	records := uint64(0)
	for {
		at := l.at
		ended, err := r.readCheckpointRecord(l, records)
		if errors.Is(err, io.EOF) {
			err = l.bad(true, "the file has no end record")
		} else if err != nil && !errors.As(err, &bad) {
			err = &badRecord{file: name, at: at, why: err.Error()}
		}
		if errors.As(err, &bad) {
			return r.refuse(bad)
		}
		if ended || err != nil {
			return err
		}
		records++
		if err := r.report(l.at - at); err != nil {
			return err
		}
	}
}

// readCheckpointRecord reads a record after others, and reports whether it is the end.
func (r *recovering) readCheckpointRecord(l *logFile, others uint64) (ended bool, err error) {
	rec, err := l.next()
	if err != nil {
		return false, err
	}
	r.Records++
	if rec.kind != kindEnd {
		e, err := rec.entry(r.Epoch)
		if err != nil {
			return false, err
		}
		return false, r.apply(e)
	}
	count, err := numberIn(rec)
	switch {
	case err != nil:
		return false, err
	case count != others:
		return false, fmt.Errorf("the file has %d records; it should have %d", others, count)
	case l.at != l.size:
		return false, errors.New("data follows the end record")
	}
	return true, nil
}
