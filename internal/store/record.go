package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
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

// A kind is a kind of record.
type kind byte

const (
	kindPublish kind = iota + 1
	kindDelete
	kindLost
	kindForget
	kindEpoch
	kindTopic
	kindKey

	kindHeader // of a segment or a checkpoint
	kindLease  // every number that was used is below the lease
	kindSynced // the file is durable up to a length, and so are all entries up to this record's number
	kindClosed // as kindSynced, at the end of a segment, by a daemon that stopped
	kindEnd    // the end of a checkpoint
	kindMark   // of a mark: a segment, and how many bytes of it are durable
)

// kinds has the kind of each entry.
var kinds = [...]kind{
	broker.OpPublish: kindPublish,
	broker.OpDelete:  kindDelete,
	broker.OpLost:    kindLost,
	broker.OpForget:  kindForget,
	broker.OpEpoch:   kindEpoch,
	broker.OpTopic:   kindTopic,
	broker.OpKey:     kindKey,
}

const (
	fileHeadBytes   = 16
	recordHeadBytes = 21

	// maxBody bounds the body of a record: the largest message, and its other fields.
	maxBody = 16 << 20

	// maxOffset is the largest integer that every JSON reader keeps exactly.
	maxOffset = 1<<53 - 1
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

// beginRecord appends the head of a record, and endRecord completes it, once its body was
// appended after it.
func beginRecord(b []byte, k kind, number uint64) []byte {
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, number)
	return append(b, byte(k), 0, 0, 0, 0)
}

// endRecord completes the record that begins at start.
func endRecord(b []byte, start int, key uint32) error {
	r := b[start:]
	length := len(r) - recordHeadBytes
	if length > maxBody {
		return fmt.Errorf("a record must have at most %d bytes; got %d", maxBody, length)
	}
	binary.LittleEndian.PutUint32(r[4:], uint32(length))
	head, body := sums(r, r[recordHeadBytes:], key)
	binary.LittleEndian.PutUint32(r, head)
	binary.LittleEndian.PutUint32(r[17:], body)
	return nil
}

// sums returns the sums of a record.
func sums(recordHead, recordBody []byte, key uint32) (head, body uint32) {
	head = crc32.Update(key, castagnoli, recordHead[4:17])
	return head, crc32.Update(head, castagnoli, recordBody)
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
	sum, _ := sums(head[:], nil, r.key)
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
	if _, sum = sums(head[:], r.body, r.key); sum != binary.LittleEndian.Uint32(head[17:]) {
		return record{}, r.bad(false, "its checksum does not match")
	}
	r.at += recordHeadBytes + length
	return record{kind(head[16]), binary.LittleEndian.Uint64(head[8:]), r.body}, nil
}

// appendEntry appends a record of an entry. The number is that of the entry in a segment, or
// its offset in a checkpoint.
func appendEntry(b []byte, e *broker.Entry, number uint64, key uint32) ([]byte, error) {
	k, start := kinds[e.Op], len(b)
	b = beginRecord(b, k, number)
	m := e.Message
	b = appendField(b, m.Position.Topic)
	switch k {
	case kindPublish:
		b = appendMessage(b, e)
	case kindLost, kindForget, kindEpoch, kindTopic:
		b = appendState(b, e.State)
	case kindKey:
		b = binary.AppendVarint(b, m.Time)
		b = appendKey(b, e.Key)
	}
	return b, endRecord(b, start, key)
}

// Flags of a publish.
const (
	flagCBOR = 1 << iota
	flagKey
	flagClaims
)

func appendMessage(b []byte, e *broker.Entry) []byte {
	m, flags := e.Message, byte(0)
	if m.CBOR {
		flags |= flagCBOR
	}
	if e.Key != (broker.Key{}) {
		flags |= flagKey
	}
	if m.Claims != nil {
		flags |= flagClaims
	}
	b = append(b, flags)
	b = binary.AppendVarint(b, m.Time)
	b = binary.AppendVarint(b, e.TTL.Milliseconds())
	b = appendField(b, m.Type)
	b = appendField(b, m.ID)
	b = appendField(b, m.Key)
	b = appendField(b, m.Client)
	b = appendField(b, m.By)
	if flags&flagClaims > 0 {
		b = appendField(b, m.Claims)
	}
	if flags&flagKey > 0 {
		b = appendKey(b, e.Key)
	}
	return append(b, m.Data...)
}

func appendKey(b []byte, k broker.Key) []byte {
	return append(append(b, k.Scope[:]...), k.Print[:]...)
}

func appendState(b []byte, s *broker.State) []byte {
	b = binary.AppendUvarint(b, uint64(s.Partition))
	b = binary.AppendUvarint(b, s.Forgotten)
	b = binary.AppendUvarint(b, s.Born)
	b = binary.AppendUvarint(b, s.Lost)
	return appendField(b, s.Reason)
}

func appendField[T ~string | ~[]byte](b []byte, field T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(field))), field...)
}

// fields reads the body of a record. After the first error, everything is zero.
type fields struct {
	body []byte
	err  error
}

var errShort = errors.New("one of its fields is not complete")

func (f *fields) uvarint() uint64 {
	n, length := binary.Uvarint(f.body)
	if length <= 0 || n > maxOffset {
		f.fail(errShort)
		return 0
	}
	f.body = f.body[length:]
	return n
}

func (f *fields) varint() int64 {
	n, length := binary.Varint(f.body)
	if length <= 0 {
		f.fail(errShort)
		return 0
	}
	f.body = f.body[length:]
	return n
}

func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
	f.body = nil
}

// take returns the next bytes of the body.
func (f *fields) take(n uint64) []byte {
	if n > uint64(len(f.body)) {
		f.fail(errShort)
		return nil
	}
	taken := f.body[:n]
	f.body = f.body[n:]
	return taken
}

func (f *fields) string() string { return string(f.take(f.uvarint())) }

func (f *fields) byte() byte {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (f *fields) key() (k broker.Key) {
	copy(k.Scope[:], f.take(uint64(len(k.Scope))))
	copy(k.Print[:], f.take(uint64(len(k.Print))))
	return k
}

func (f *fields) state() *broker.State {
	s := &broker.State{Partition: int(f.uvarint()), Forgotten: f.uvarint(), Born: f.uvarint(), Lost: f.uvarint()}
	s.Reason = wire.GapReason(f.string())
	switch {
	case f.err != nil:
	case s.Partition != 0:
		f.fail(fmt.Errorf("it is of partition %d; the log has only partition 0", s.Partition))
	case s.Reason != "" && !slices.Contains(wire.GapReasons(), s.Reason):
		f.fail(fmt.Errorf("it has an unknown gap reason, %.40q", s.Reason))
	}
	return s
}

// end returns the first error. A body that is longer than its fields is an error.
func (f *fields) end() error {
	if f.err == nil && len(f.body) > 0 {
		f.err = fmt.Errorf("%d bytes follow its fields", len(f.body))
	}
	return f.err
}

// entry returns the entry of a record, for an epoch. It keeps nothing of the record. What a
// file says is not trusted: entry checks it as the daemon checks requests.
func (r record) entry(epoch string) (broker.Entry, error) {
	f := fields{body: r.body}
	e := broker.Entry{Message: &wire.Message{Position: wire.Position{Epoch: epoch, Offset: r.number}}}
	e.Message.Position.Topic = f.string()
	switch r.kind {
	case kindPublish:
		e.Op = broker.OpPublish
		f.message(&e)
	case kindDelete:
		e.Op = broker.OpDelete
	case kindLost, kindForget, kindEpoch, kindTopic:
		e.Op = broker.Op(slices.Index(kinds[:], r.kind))
		e.State = f.state()
	case kindKey:
		e.Op = broker.OpKey
		e.Message.Time = f.varint()
		e.Key = f.key()
	default:
		f.fail(fmt.Errorf("this version of pubsubd does not know its kind, %d", r.kind))
	}
	if err := f.end(); err != nil {
		return broker.Entry{}, err
	}
	return e, checkEntry(&e)
}

// message reads the message of a publish.
func (f *fields) message(e *broker.Entry) {
	flags, m := f.byte(), e.Message
	m.Time = f.varint()
	ttl := f.varint()
	m.Type, m.ID, m.Key, m.Client, m.By = f.string(), f.string(), f.string(), f.string(), f.string()
	if flags&flagClaims > 0 {
		m.Claims = bytes.Clone(f.take(f.uvarint()))
	}
	if flags&flagKey > 0 {
		e.Key = f.key()
	}
	m.CBOR = flags&flagCBOR > 0
	m.Data = append([]byte{}, f.take(uint64(len(f.body)))...)
	if f.err != nil {
		return
	}
	if err := checkMessage(m, ttl); err != nil {
		f.fail(err)
	}
	e.TTL = time.Duration(ttl) * time.Millisecond
}

// maxTTL is the longest life that a time.Duration holds, in milliseconds.
const maxTTL = math.MaxInt64 / int64(time.Millisecond)

// checkMessage checks a message, but for its position, and its life in milliseconds.
func checkMessage(m *wire.Message, ttl int64) error {
	switch {
	case m.Time < 0 || ttl < 0 || ttl > maxTTL:
		return errors.New("the message's time is not valid")
	case len(m.Type) > wire.MaxTypeBytes || len(m.Key) > wire.MaxKeyBytes || len(m.ID) > wire.MaxKeyBytes:
		return errors.New("the message's type, key or id is too long")
	case m.Client != "" && wire.CheckClient(m.Client) != nil:
		return wire.CheckClient(m.Client)
	case len(m.By) > wire.MaxByBytes || m.Claims != nil && !hasPublicClaims(m):
		return errors.New("the message's by is too long, or its claims are not valid")
	case m.CBOR && m.Type != "":
		return errors.New("the message has JSON values, and a type")
	case m.CBOR:
		if model, err := cbor.Check(m.Data); err != nil || model != cbor.IsJSON {
			return errors.New("the message's data is not CBOR of JSON values")
		}
	case m.Type == "" && !isCompactJSON(m.Data):
		return errors.New("the message's data is not JSON")
	}
	return nil
}

// hasPublicClaims reports whether the claims have the form that tokens may have: a compact
// JSON object of few bytes, of a known subject.
func hasPublicClaims(m *wire.Message) bool {
	return m.By != "" && len(m.Claims) > 0 && len(m.Claims) <= wire.MaxClaimsBytes && m.Claims[0] == '{' && isCompactJSON(m.Claims)
}

// isCompactJSON reports whether data is JSON as wire.CompactJSON returns it, but a member may
// come twice: older daemons allowed that.
func isCompactJSON(data []byte) bool {
	compact, err := jsontext.AppendFormat(nil, data,
		jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	return err == nil && len(compact) == len(data) && utf8.Valid(data)
}

// checkEntry checks the position and the state of an entry.
func checkEntry(e *broker.Entry) error {
	at := e.Message.Position
	switch {
	case at.Offset > maxOffset:
		return fmt.Errorf("its offset must be at most %d; got %d", uint64(maxOffset), at.Offset)
	case e.Message.Time < 0:
		return errors.New("its time is before 1970")
	case e.Op == broker.OpEpoch && e.State.Born > e.State.Lost:
		return fmt.Errorf("its first loss, at %d, is after its last, at %d", e.State.Born, e.State.Lost)
	case e.Op == broker.OpEpoch && at.Topic == "":
		return nil
	case e.Op == broker.OpForget && e.State.Lost > at.Offset:
		return fmt.Errorf("it forgets the topic at offset %d, but the topic has one at %d", at.Offset, e.State.Lost)
	case e.Op == broker.OpTopic && (e.State.Born > at.Offset || e.State.Lost > at.Offset):
		return fmt.Errorf("its offsets contradict each other: born %d, lost %d, head %d", e.State.Born, e.State.Lost, at.Offset)
	case (e.Op == broker.OpTopic || e.Op == broker.OpLost) && e.State.Reason == "":
		return errors.New("it has no gap reason")
	}
	return wire.CheckTopic(at.Topic)
}
