package store

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/entry"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

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
		r.closed = r.closed && s.size == 0 // a daemon that began it wrote after the clean end
		// Its header may have had a lease that no other file has.
		r.lease = max(r.lease, found.lease, s.number+r.wal.cfg.leaseNumbers)
		if found.length > 0 || r.SameBoot && !s.bad.partial {
			if err := r.refuse(s.bad); err != nil {
				return err
			}
		}
	}
	return nil
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

// notices are the highest numbers in records kindSynced, kindClosed and kindLease.
type notices struct {
	synced uint64 // all entries up to this number were durable
	length int64  // so many bytes of the file were durable
	lease  uint64
}

// noticeBytes is the length of a record of appendNumber.
const noticeBytes = recordHeadBytes + 8

// findNotices returns the notices in a file. It looks at each byte, because the beginning of
// the record after a bad one is unknown.
func findNotices(fs FS, name string, key uint32) (found notices, err error) {
	file, err := fs.Open(name)
	if err != nil {
		return notices{}, err
	}
	defer func() { _ = file.Close() }() // nothing was written
	from := bufio.NewReaderSize(file, readBufferBytes)
	for {
		b, err := from.Peek(noticeBytes)
		switch {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return notices{}, fmt.Errorf("read %s: %w", name, err)
		}
		if k := kind(b[16]); k >= kindLease && k <= kindClosed && binary.LittleEndian.Uint32(b[4:]) == noticeBytes-recordHeadBytes {
			value := binary.LittleEndian.Uint64(b[recordHeadBytes:])
			switch sum := crc32.Update(key, castagnoli, b[4:17]); {
			case sum != binary.LittleEndian.Uint32(b), crc32.Update(sum, castagnoli, b[recordHeadBytes:]) != binary.LittleEndian.Uint32(b[17:]):
			case k == kindLease:
				found.lease = max(found.lease, value)
			default:
				found.synced = max(found.synced, binary.LittleEndian.Uint64(b[8:]))
				found.length = max(found.length, int64(value))
			}
		}
		_, _ = from.Discard(1) // it was peeked
	}
}

// refuse returns why the daemon must not start, or nil if the log is repaired.
func (r *recovering) refuse(bad *badRecord) error {
	if r.wal.repairs {
		r.wal.cfg.Logger.Warn("a part of the log on disk is lost", zap.Error(bad))
		r.Damage = append(r.Damage, Damage{bad.file, bad.at, bad.why})
		return nil
	}
	return fmt.Errorf("%w. A crash cannot cause this: the disk or a program has damaged the file. Entries up to %d can be read. "+
		"Restore the folder from a backup, or %s", bad, r.last, toRepair)
}

// Remedies if the start is refused.
const (
	toRepair   = "run `pubsubd store repair DIR`, which keeps what can be read and announces the rest as lost"
	toPutBack  = "put the file back, restore the folder from a backup, or " + toRepair
	toBeginNew = "restore the folder from a backup, or empty the folder to begin a new log"
)

// badOrUnknown returns the error for a record that was read, but is not valid. An entry of a
// newer release is no damage, and a repair must not drop it.
func badOrUnknown(file string, at int64, why error) error {
	if _, ok := errors.AsType[entry.Unknown](why); ok {
		return fmt.Errorf("%s, byte %d: %w", file, at, why)
	}
	return &badRecord{file: file, at: at, why: why.Error()}
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

// mayHaveLost reports whether entries that were visible may be missing at the end of the log.
func (r *recovering) mayHaveLost() bool {
	return r.wal.repairs || r.cutShort || !r.Clean && !r.SameBoot && (!r.newest.always || r.Cut > 0)
}
