package store

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Recovery says what the start of a log found.
type Recovery struct {
	Epoch    string
	Last     uint64        // newest entry that was recovered
	Lost     uint64        // unless 0, entries up to this number may be lost, and no entry was written since
	Records  int           // that were read
	Skipped  int           // of these, entries that only a newer release knows, and that may be skipped
	Bytes    int64         // that were read
	Cut      int64         // bytes after Last that are ignored: incomplete records, and all that follows
	CutFile  string        // the file where they begin; empty: none
	Damage   []Damage      // of a log that is repaired: why a start would refuse it
	Clean    bool          // the last daemon stopped cleanly
	Used     bool          // the last daemon had SyncStop, and has not written its state
	SameBoot bool          // the boot id is that of the last daemon, and no sync had failed
	Took     time.Duration // of the clock that open gets
}

// open locks the folder, reads the log, and applies its entries. Then it begins a segment, or
// with SyncStop marks the files as used. An error says why the daemon must not start. Then the lock was released.
func (w *WAL) open(apply func(broker.Entry) error, now time.Time) error {
	begun := time.Now()
	lock, err := w.fs.Lock()
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	w.lock, w.apply = lock, apply
	r := &recovering{wal: w}
	if err = r.read(); err == nil {
		err = r.begin(now)
	}
	if err != nil {
		w.abandon()
		return fmt.Errorf("store: %w%s", err, diskRemedy(err))
	}
	w.broker.KeepTopics(now.Add(keepTopics))
	r.Took = time.Since(begun)
	w.cfg.Recovered(r.Recovery)
	return nil
}

// diskRemedy is the remedy for a folder that a start cannot read or write, or is empty.
func diskRemedy(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return " (free space on the disk of store.dir; the next start needs some, and later frees what it can)"
	case errors.Is(err, syscall.EROFS):
		return " (mount the disk of store.dir so that it can be written)"
	case errors.Is(err, fs.ErrPermission):
		return " (make the daemon's user the owner of store.dir and of all files in it, for instance with chown -R)"
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
	final         bool   // the checkpoint is that of a StopLog
	alone         bool   // and no segment follows it
	checkpoint    uint64 // number of the newest one
	syncFailed    bool   // see failedSyncName
	hasMark       bool
	cutShort      bool // the log ends before its mark, which a loss of power can cause
	hasSeed       bool
	lease         uint64
	last          uint64 // number of the newest entry that was read
	proven        uint64 // entries up to this one were durable
	lost          uint64 // of the newest header that says that entries were lost
	closed        bool   // the last record that was read is the clean end
	chain         []*segmentFile
	base          int64 // bytes of the checkpoint
	all, reported int64 // bytes to read, and at the last call of Progress
}

// A segmentFile is a segment that was found.
type segmentFile struct {
	header
	name string
	size int64
	bad  *badRecord // why it has no header; nil: it has one

	newest uint64 // number of the newest entry that was read
}

// read reads the log, and applies its entries.
func (r *recovering) read() error {
	for _, part := range []func() error{r.list, r.readHeaders, r.readAll, r.checkMark} {
		if err := part(); err != nil {
			return err
		}
	}
	if r.wal.repairs {
		r.lease = max(r.lease, r.last) + leaseUnknown
	}
	r.Clean, r.Last = !r.Used && !r.cutShort && (r.closed || r.newest == nil), r.last
	return nil
}

// leaseUnknown is how far a repair goes above all numbers that it reads. The daemon may have
// used numbers above the lease: in what is damaged, or after a backup was made.
const leaseUnknown = 1 << 32

// list finds the files, and removes unfinished ones.
func (r *recovering) list() error {
	names, err := r.wal.fs.List()
	if err != nil {
		return err
	}
	for _, name := range names { // in order
		kind, _, number := kindOf(name)
		switch {
		case number > mostNumber:
			return fmt.Errorf("%s has a number that no log reaches: %s", name, toPutBack)
		case kind == KindSegment:
			r.segments = append(r.segments, &segmentFile{name: name, header: header{number: number}})
		case kind == KindCheckpoint:
			r.hasCheckpoint, r.checkpoint = true, number
		case kind == KindMark:
			r.hasMark = true
		case name == failedSyncName:
			r.syncFailed = true
		case name == UsedName:
			r.Used = true
		case strings.HasSuffix(name, unfinishedSuffix) && !r.readOnly:
			if err := r.wal.fs.Remove(name); err != nil {
				return err
			}
		}
	}
	if r.Used { // all other files are out of date
		r.segments, r.hasCheckpoint, r.hasMark = nil, false, false
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
	if r.hasCheckpoint || r.newest != nil {
		return nil
	}
	for _, s := range r.segments { // at most, a first start made one; that has its name only since its header is durable
		if s.size > 0 {
			return fmt.Errorf("%s has %d bytes, but no file has the beginning of the log: %s", s.name, s.size, toBeginNew)
		}
	}
	return nil
}

// headerMost is more than the bytes of a head and a header.
const headerMost = 256

// checkSeed makes sure that all files are of one log, whose epoch begins with the first of them.
func (r *recovering) checkSeed(name string, seed uint64, epoch string) error {
	if !r.hasSeed {
		r.hasSeed, r.wal.seed, r.Epoch = true, seed, epoch
		r.wal.epoch.Store(&epoch)
		return r.apply(broker.Entry{Op: broker.OpEpoch, Message: &wire.Message{}, State: &broker.State{}})
	}
	if seed != r.wal.seed || epoch != r.Epoch {
		return fmt.Errorf("%s belongs to another log than the other files: move the files of one log to another folder", name)
	}
	return nil
}
