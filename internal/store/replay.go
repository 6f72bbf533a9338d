package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/entry"
)

// readAll reads the checkpoint, and the segments after it.
func (r *recovering) readAll() error {
	if r.newest == nil && !r.hasCheckpoint {
		return nil
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
		return errors.New("no file of the log can be read: " + toBeginNew)
	}
	r.last, r.proven = r.checkpoint, max(r.checkpoint, r.proven)
	if err := r.findChain(); err != nil {
		return err
	}
	if r.newest == nil { // the checkpoint is alone, or the log is repaired
		return nil
	}
	r.SameBoot = r.newest.boot != "" && r.newest.boot == r.wal.cfg.BootID && !r.syncFailed
	if err := r.readChain(); err != nil {
		return err
	}
	return r.checkHeaderless()
}

// apply applies an entry of this log's epoch.
func (r *recovering) apply(e broker.Entry) error {
	e.Message.Position.Epoch = r.Epoch
	return r.wal.apply(e)
}

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
	r.base, r.all, r.final = l.size, r.all+l.size, l.last
	r.alone = r.final && len(r.segments) == 0
	if r.alone {
		r.lease = r.checkpoint + 1
	}
	if err := r.checkSeed(name, seed, l.epoch); err != nil {
		return err
	}
	records := uint64(0)
	for {
		at := l.at
		ended, err := r.readCheckpointRecord(l, records)
		if errors.Is(err, io.EOF) {
			err = l.bad(true, "the file has no end record")
		} else if err != nil && !errors.As(err, &bad) {
			err = badOrUnknown(name, at, err)
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
		return false, r.applyRecord(rec)
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
	case r.alone:
		return nil
	case r.wal.repairs && len(r.chain) > 0:
		slices.Reverse(r.chain)
		_ = r.refuse(&badRecord{file: r.chain[0].name, why: fmt.Sprintf("the file before it, up to entry %d, is missing", end)})
		return r.lose(end)
	case r.wal.repairs:
		return r.refuse(&badRecord{file: fileName(r.checkpoint, checkpointSuffix), why: "the segment after it is missing"})
	case len(r.chain) == 0:
		return fmt.Errorf("the checkpoint has the entries up to %d, but the segment after it is missing: %s", r.checkpoint, toPutBack)
	}
	return fmt.Errorf("%s continues after entry %d, but the file before it is missing: %s", r.chain[len(r.chain)-1].name, end, toPutBack)
}

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

// readSegment reads a segment, up to where the next one begins. It reports whether the log
// ends within it.
func (r *recovering) readSegment(s *segmentFile, later []*segmentFile) (ended bool, err error) {
	l, _, err := openFile(r.wal.fs, s.name, segmentMagic, s.number)
	if err != nil {
		return false, err
	}
	defer l.close()
	r.closed = false
	end := uint64(entry.MaxOffset)
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
		bad = cmp.Or(bad, l.bad(false, "entries up to %d should follow", s.copied))
		if err := r.refuse(bad); err != nil {
			return false, err
		}
	}
	if s.lost > r.last {
		if err := r.lose(s.lost); err != nil {
			return false, err
		}
	}
	if len(later) > 0 && r.last == end || len(later) == 0 && bad == nil {
		return false, nil
	}
	if bad == nil {
		bad = cmp.Or(r.headerless(s, later[0]),
			l.bad(false, "the file ends after entry %d, but %s continues after entry %d", r.last, later[0].name, end))
	}
	r.CutFile, r.Cut = s.name, l.size-bad.at
	return true, r.mayEnd(bad, l.key, later)
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
			err = badOrUnknown(l.file, at, err)
			if bad, ok := errors.AsType[*badRecord](err); ok && !r.wal.repairs {
				return r.refuse(bad)
			}
			return err
		}
	}
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
	if err := r.applyRecord(rec); err != nil {
		return err
	}
	r.last = rec.number
	return nil
}

// applyRecord applies the entry of a record, unless this release does not know it and may skip it.
func (r *recovering) applyRecord(rec record) error {
	e, err := rec.entry(r.Epoch)
	if unknown, ok := errors.AsType[entry.Unknown](err); ok && unknown.Kind&entry.Optional > 0 {
		r.Skipped++
		return nil
	}
	if err != nil {
		return err
	}
	return r.apply(e)
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
