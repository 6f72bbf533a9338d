package store

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/entry"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A file of the write-ahead log is a head of 16 bytes, a header record, and more records:
//
//	magic  8 bytes: "pubsubL1" is a segment, "pubsubC1" a checkpoint, "pubsubM1" a mark, all of version 1
//	seed   8 bytes, random, the same in all files of a log
//
//	record:
//	0         4       8                 16  17        21
//	| head sum| length| number          |kind| body sum| body: length bytes |
//
// Integers have little endian order. Both sums are CRC32C. The head sum covers length,
// number and kind. If it is right, and the file is shorter than length says, the record was
// not completely written. The body sum continues it over the body. Both begin with the seed and
// the number in the file's name (see keyOfFile). So no message can contain the bytes of a
// record, since a client does not know the seed; and a record of another file is not valid.
//
// In a segment, the number is that of the log's entry. Numbers of entries rise, and may
// skip. In a checkpoint, the number is the offset of the entry.

// A kind is a kind of record: that of an entry, or one of the log's own.
type kind = entry.Kind

const (
	kindHeader kind = 8 + iota // of a segment or a checkpoint
	kindLease                  // every number that was used is below the lease
	kindSynced                 // the file is durable up to a length, and so are all entries up to this record's number
	kindClosed                 // as kindSynced, at the end of a segment, by a daemon that stopped
	kindEnd                    // the end of a checkpoint
	kindMark                   // of a mark: a segment, and how many bytes of it are durable
)

const (
	fileHeadBytes   = 16
	recordHeadBytes = 21

	// maxBody bounds the body of a record: the largest message, and its other fields.
	maxBody = 16 << 20
)

// A record is one record of a file. Its body is valid until the next one is read.
type record struct {
	kind   kind
	number uint64
	body   []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// keyOfFile returns the checksum with which those of a file's records begin.
func keyOfFile(seed, number uint64) uint32 {
	b := binary.LittleEndian.AppendUint64(nil, seed)
	return crc32.Checksum(binary.LittleEndian.AppendUint64(b, number), castagnoli)
}

// noHead begins a record: its body is appended, and then endRecord writes its head.
var noHead [recordHeadBytes]byte

// endRecord writes the head of the record that begins at start.
func endRecord(b []byte, start int, k kind, number uint64, key uint32) error {
	r := b[start:]
	length := len(r) - recordHeadBytes
	if length > maxBody {
		return fmt.Errorf("a record must have at most %d bytes; got %d", maxBody, length)
	}
	binary.LittleEndian.PutUint32(r[4:], uint32(length))
	binary.LittleEndian.PutUint64(r[8:], number)
	r[16] = byte(k)
	sum := crc32.Update(key, castagnoli, r[4:17])
	binary.LittleEndian.PutUint32(r, sum)
	binary.LittleEndian.PutUint32(r[17:], crc32.Update(sum, castagnoli, r[recordHeadBytes:]))
	return nil
}

// A badRecord is an error that says where a file has no valid record.
type badRecord struct {
	file    string
	at      int64 // where the record begins
	why     string
	partial bool // the file ends within the record
}

func (b *badRecord) Error() string {
	return fmt.Sprintf("%s has a bad record at byte %d: %s", b.file, b.at, b.why)
}

// recordReader reads the records of one file.
type recordReader struct {
	file string
	from *bufio.Reader
	size int64 // of the file
	at   int64 // where the next record begins
	key  uint32
	body []byte
}

func (r *recordReader) bad(partial bool, why string, args ...any) *badRecord {
	return &badRecord{r.file, r.at, fmt.Sprintf(why, args...), partial}
}

// readHead reads the magic and the seed of a file.
func (r *recordReader) readHead(magic string) (seed uint64, err error) {
	var head [fileHeadBytes]byte
	if r.size < fileHeadBytes {
		return 0, r.bad(true, "the file ends after %d bytes", r.size)
	}
	if _, err := io.ReadFull(r.from, head[:]); err != nil {
		return 0, fmt.Errorf("read %s: %w", r.file, err)
	}
	switch got := string(head[:8]); {
	case got == magic:
	case got[:7] == magic[:7]:
		return 0, r.bad(false, "another version of pubsubd wrote it (format %q; this version reads %q): start that version", got, magic)
	default:
		return 0, r.bad(false, "the file does not begin with %q", magic)
	}
	r.at = fileHeadBytes
	return binary.LittleEndian.Uint64(head[8:]), nil
}

// next reads a record. The error is io.EOF at the end of the file, a *badRecord, or that of
// the file system.
func (r *recordReader) next() (record, error) {
	left := r.size - r.at
	switch {
	case left == 0:
		return record{}, io.EOF
	case left < recordHeadBytes:
		return record{}, r.bad(true, "the file has only %d bytes of it", left)
	}
	var head [recordHeadBytes]byte
	if _, err := io.ReadFull(r.from, head[:]); err != nil {
		return record{}, fmt.Errorf("read %s: %w", r.file, err)
	}
	length := int64(binary.LittleEndian.Uint32(head[4:]))
	sum := crc32.Update(r.key, castagnoli, head[4:17])
	switch {
	case sum != binary.LittleEndian.Uint32(head[:]):
		return record{}, r.bad(false, "its checksum does not match")
	case length > maxBody:
		return record{}, r.bad(false, "its length must be at most %d; got %d", maxBody, length)
	case left < recordHeadBytes+length:
		return record{}, r.bad(true, "the file has only %d of its %d bytes", left, recordHeadBytes+length)
	}
	r.body = slices.Grow(r.body[:0], int(length))[:length]
	if _, err := io.ReadFull(r.from, r.body); err != nil {
		return record{}, fmt.Errorf("read %s: %w", r.file, err)
	}
	if crc32.Update(sum, castagnoli, r.body) != binary.LittleEndian.Uint32(head[17:]) {
		return record{}, r.bad(false, "its checksum does not match")
	}
	r.at += recordHeadBytes + length
	return record{kind(head[16]), binary.LittleEndian.Uint64(head[8:]), r.body}, nil
}

// appendEntry appends a record of an entry. The number is that of the entry in a segment, or
// its offset in a checkpoint.
func appendEntry(b []byte, e *broker.Entry, number uint64, key uint32) ([]byte, error) {
	start := len(b)
	b = entry.Append(append(b, noHead[:]...), e)
	return b, endRecord(b, start, entry.KindOf(e.Op), number, key)
}

// entry returns the entry of a record, for an epoch. It keeps nothing of the record.
func (r record) entry(epoch string) (broker.Entry, error) {
	return entry.Read(r.kind, r.body, wire.Position{Epoch: epoch, Offset: r.number})
}
