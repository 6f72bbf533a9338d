package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/internal/entry"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The magic of each kind of file, and the end of its name. The name begins with the
// file's number, in 20 digits: in order of the names, files are in order of the numbers.
const (
	segmentMagic    = "pubsubL1"
	checkpointMagic = "pubsubC1"

	segmentSuffix    = ".log"
	checkpointSuffix = ".checkpoint"
	unfinishedSuffix = ".new" // after another suffix
	oldSuffix        = ".old" // likewise; of a log that was repaired
)

func fileName(number uint64, suffix string) string { return fmt.Sprintf("%020d%s", number, suffix) }

// numberOf returns the number in a name with a suffix.
func numberOf(name, suffix string) (number uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, err == nil || errors.Is(err, strconv.ErrRange) // then it is the largest number
}

// mostNumber is more than any log reaches, and leaves room for numbers that starts skip. After
// a file with a higher number, new ones would have offsets that clients cannot read.
const mostNumber = entry.MaxOffset - 1<<50

// A header is the first record of a file. Its number is that of the file.
type header struct {
	number uint64 // of a checkpoint, that of the last entry in it
	epoch  string

	// Of a segment:
	prev   uint64 // the last entry of the log before this file; what older files have after that is not part of the log
	lost   uint64 // unless 0, entries between those in this file, up to this number, may be lost
	copied uint64 // the file began with entries up to this number, before it got its name
	lease  uint64 // every number that was used is below it
	synced uint64 // all entries up to this number are durable
	always bool   // an entry of this file is durable before anybody sees it
	never  bool   // of the mark
	boot   string // the kernel's boot id

	last bool // of a checkpoint: no segment follows it; see StopLog
}

func (h *header) append(b []byte, key uint32) []byte {
	start := len(b)
	b = entry.AppendField(append(b, noHead[:]...), h.epoch)
	for _, n := range []uint64{h.prev, h.copied, h.lost, h.lease, h.synced} {
		b = binary.AppendUvarint(b, n)
	}
	flags := byte(0)
	for bit, is := range []bool{h.always, h.last, h.never} {
		if is {
			flags |= 1 << bit
		}
	}
	b = append(b, flags)
	b = entry.AppendField(b, h.boot)
	if err := endRecord(b, start, kindHeader, h.number, key); err != nil {
		panic("BUG: a header is too long: " + err.Error())
	}
	return b
}

func parseHeader(r record) (header, error) {
	if r.kind != kindHeader {
		return header{}, errors.New("it is not a header")
	}
	f := entry.NewFields(r.body)
	h := header{number: r.number, epoch: f.Text(), prev: f.Uvarint(), copied: f.Uvarint(), lost: f.Uvarint(), lease: f.Uvarint(), synced: f.Uvarint()}
	flags := f.Byte()
	h.always, h.last, h.never = flags&1 > 0, flags&2 > 0, flags&4 > 0
	h.boot = f.Text()
	if err := f.End(); err != nil {
		return header{}, err
	}
	if _, err := wire.ParsePosition("a@" + h.epoch + ":0"); err != nil {
		return header{}, fmt.Errorf("its epoch %.40q is not valid", h.epoch)
	}
	return h, nil
}

// A segment is a file of the log that is written, or that was written and is not durable
// yet. WAL.writing guards its fields.
type segment struct {
	file   FileWriter
	name   string
	key    uint32
	first  uint64 // the number in its name
	size   int64  // of the records that were written whole
	synced int64  // so many bytes are durable
	named  bool   // its name is durable
}

// createFile makes a file with a header. If that fails, there is no file, or one that
// recovery ignores.
func createFile(fs FS, name, magic string, seed uint64, h *header) (*segment, error) {
	file, err := fs.Create(name)
	if err != nil {
		return nil, err
	}
	s := &segment{file: file, name: name, key: keyOfFile(seed, h.number), first: h.number}
	b := append(make([]byte, 0, 256), magic...)
	b = h.append(binary.LittleEndian.AppendUint64(b, seed), s.key)
	if err := s.write(b); err != nil {
		return nil, errors.Join(err, file.Close(), fs.Remove(name))
	}
	return s, nil
}

// write appends bytes. After an error, size is as before, and the file may be longer.
func (s *segment) write(b []byte) error {
	n, err := s.file.Write(b)
	switch {
	case err != nil:
		return fmt.Errorf("write %s: %w", s.name, err)
	case n < len(b):
		return fmt.Errorf("write %s: %w", s.name, io.ErrShortWrite)
	}
	s.size += int64(n)
	return nil
}

// beginSegmentLocked begins a segment after the current one. It syncs nothing: the header
// says up to where older files are durable.
func (w *WAL) beginSegmentLocked() error {
	number := max(w.seq.last, w.files.newest) + 1
	w.files.newest = number // its name is not used again, also if this fails
	h := header{
		number: number, epoch: *w.epoch.Load(), prev: w.seq.accepted, lease: max(w.seq.lease, w.seq.nextLease), synced: w.seq.synced,
		always: w.cfg.Sync == SyncAlways, boot: w.cfg.BootID,
	}
	s, err := createFile(w.fs, fileName(number, segmentSuffix), segmentMagic, w.seed, &h)
	if err != nil {
		return err
	}
	w.leaveSegmentLocked()
	w.seq.last, w.files.current, w.files.unsynced, w.files.segments = number-1, s, append(w.files.unsynced, s), append(w.files.segments, number)
	signal(w.grown)
	return nil
}

// appendLocked appends to the current segment. After an error the segment is as before: it
// is cut back, or the next batch begins another one, whose header says where this one ends.
func (w *WAL) appendLocked(b []byte) error {
	s := w.files.current
	err := s.write(b)
	if err == nil {
		return nil
	}
	w.seq.told, w.seq.nextLease, w.faults.failed = 0, 0, max(w.faults.failed, len(b)) // their records are cut
	if err = w.cutLocked(s, s.size, err); errors.Is(err, errUnknown) {
		w.leaveSegmentLocked()
	}
	return err
}

func (w *WAL) leaveSegmentLocked() {
	if w.files.current != nil {
		w.files.oldBytes += w.files.current.size
		w.files.current = nil
	}
}

// appendNumber appends a record whose body is one number.
func appendNumber(b []byte, k kind, number, n uint64, key uint32) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint64(append(b, noHead[:]...), n)
	_ = endRecord(b, start, k, number, key) // it is short
	return b
}

// numberIn returns the number in the body of a record of appendNumber.
func numberIn(r record) (uint64, error) {
	if len(r.body) != 8 {
		return 0, entry.ErrShort
	}
	return binary.LittleEndian.Uint64(r.body), nil
}

// A logFile is a file of the log that is read.
type logFile struct {
	recordReader
	header
	reader FileReader
	newest uint64 // number of the newest entry that was read
}

// readBufferBytes is how much of a file is read at a time.
const readBufferBytes = 256 << 10

// openFile opens a file, and reads its header. If the error is a *badRecord, the result has
// the size.
func openFile(fs FS, name, magic string, number uint64) (l *logFile, seed uint64, err error) {
	file, err := fs.Open(name)
	if err != nil {
		return nil, 0, err
	}
	l = &logFile{reader: file, recordReader: recordReader{file: name, from: bufio.NewReaderSize(file, readBufferBytes)}}
	if l.size, err = file.Size(); err == nil {
		seed, err = l.readHead(magic)
	}
	var r record
	if err == nil {
		l.key = keyOfFile(seed, number)
		if r, err = l.next(); errors.Is(err, io.EOF) {
			err = l.bad(true, "the file ends before its header")
		}
	}
	if err == nil {
		if l.header, err = parseHeader(r); err == nil && l.header.number != number {
			err = fmt.Errorf("the file's name says %d, and its header %d", number, l.header.number)
		}
		if err != nil {
			err = l.bad(false, "%s", err)
		}
	}
	if err != nil {
		err = errors.Join(err, file.Close())
	}
	return l, seed, err
}

// close closes the file. Nothing was written, so no error matters.
func (l *logFile) close() { _ = l.reader.Close() }
