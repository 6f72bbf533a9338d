package frame

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"
)

// A Member is an answer's body as one gzip member (RFC 1952), put together of blocks
// that all answers share. Browsers stop reading after the first member, so an answer
// of many frames is not one for each:
//
//	+----------+-----------------+------------------------+- - -+-------+--------+--------+
//	| header   | stored block:   | the block of a frame   |     | 03 00 | CRC-32 | length |
//	| 10 bytes | hello, short    | that pays, as Deflated |     | final | of all that is  |
//	|          | frames, gaps    | has it                 |     | block | decompressed    |
//	+----------+-----------------+------------------------+- - -+-------+-----------------+
type Member struct {
	parts []Part
	own   []byte // of the parts that are not shared; with room for all of them from the beginning
	size  int
	crc   uint32
	raw   int

	stored []byte // header of the stored block that more can go to
	room   int    // how much more
}

// A Part is some bytes of a Member: a frame's, or its own, which are valid until its
// Release.
type Part struct {
	Bytes []byte
	Frame *Frame // nil: its own
}

// The frame of a member, and of a stored block (RFC 1951, section 3.2.4).
const (
	gzipTrailer  = 2 + 4 + 4
	storedHeader = 1 + 2 + 2
	maxStored    = 1<<16 - 1
)

// gzipHeader says neither name nor time, nor on which system it was made.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}

var members = sync.Pool{New: func() any { return new(Member) }}

// TakeMember returns lead (which may be nil) and frames as a member, or nil if that
// does not pay: no frame among them does, see Deflated. It is Released when it is
// written.
func TakeMember(format Format, least int, lead []byte, frames []*Frame) *Member {
	m := BeginMember(format, least, lead, frames)
	if m != nil {
		m.end()
	}
	return m
}

// BeginMember is TakeMember for a member that Continue ends.
func BeginMember(format Format, least int, lead []byte, frames []*Frame) *Member {
	for _, f := range frames {
		if _, pays := f.Deflated(format, least); pays {
			return beginMember(format, least, lead, frames)
		}
	}
	return nil
}

func beginMember(format Format, least int, lead []byte, frames []*Frame) *Member {
	m := members.Get().(*Member)
	m.begin(format, lead, frames)
	m.put(gzipHeader, nil)
	m.store(lead, nil)
	m.add(format, least, frames)
	return m
}

// Continue replaces the parts, which were written, by those of more frames. Without any
// it ends the member.
func (m *Member) Continue(format Format, least int, frames []*Frame) {
	clear(m.parts)
	m.parts, m.own, m.room = m.parts[:0], m.own[:0], 0
	m.begin(format, nil, frames)
	m.add(format, least, frames)
	if len(frames) == 0 {
		m.end()
	}
}

func (m *Member) add(format Format, least int, frames []*Frame) {
	for _, f := range frames {
		if block, pays := f.Deflated(format, least); pays {
			m.sum(f.Bytes(format))
			m.put(block, f)
			m.room = 0
		} else {
			m.store(f.Bytes(format), f)
		}
	}
}

// maxMember is how many parts a member keeps room for.
const maxMember = 4096

// Release gives the member's memory back.
func (m *Member) Release() {
	if cap(m.parts) > maxMember {
		return
	}
	clear(m.parts)
	*m = Member{parts: m.parts[:0], own: m.own[:0]}
	members.Put(m)
}

// Parts are the member's, in order. The caller must not change them.
func (m *Member) Parts() []Part { return m.parts }

// Size is how many bytes the member has, with those that Continue has replaced.
func (m *Member) Size() int { return m.size }

// Raw is how many bytes it stands for.
func (m *Member) Raw() int { return m.raw }

// begin makes room for what is the member's own: were it made later, what it has
// would move.
func (m *Member) begin(format Format, lead []byte, frames []*Frame) {
	headers := 1 + len(lead)/maxStored
	for _, f := range frames {
		headers += 1 + len(f.Bytes(format))/maxStored
	}
	m.own = slices.Grow(m.own, headers*storedHeader+gzipTrailer)
}

func (m *Member) put(b []byte, f *Frame) {
	m.parts = append(m.parts, Part{b, f})
	m.size += len(b)
}

// make returns n bytes of the member's own, put behind the rest.
func (m *Member) make(n int) []byte {
	m.own = m.own[:len(m.own)+n]
	b := m.own[len(m.own)-n:]
	m.put(b, nil)
	return b
}

// sum takes what will be decompressed into account.
func (m *Member) sum(text []byte) {
	m.raw += len(text)
	m.crc = crc32.Update(m.crc, crc32.IEEETable, text)
}

// store puts text behind the rest as it is: that of f, or of no frame.
func (m *Member) store(text []byte, f *Frame) {
	m.sum(text)
	for len(text) > 0 {
		if m.room == 0 {
			m.stored, m.room = m.make(storedHeader), maxStored
		}
		n := min(len(text), m.room)
		m.put(text[:n], f)
		m.room -= n
		length := uint16(maxStored - m.room)
		m.stored[0] = 0 // not the last block, stored, and the rest of the byte
		binary.LittleEndian.PutUint16(m.stored[1:], length)
		binary.LittleEndian.PutUint16(m.stored[3:], ^length)
		text = text[n:]
	}
}

// end puts an empty block, which is the last, and the trailer behind the rest.
func (m *Member) end() {
	b := m.make(gzipTrailer)
	b[0], b[1] = 3, 0 // the last, with fixed codes, and its end
	binary.LittleEndian.PutUint32(b[2:], m.crc)
	binary.LittleEndian.PutUint32(b[6:], uint32(m.raw)) // modulo 2^32
}

// appendTo appends the member.
func (m *Member) appendTo(dst []byte) []byte {
	for _, p := range m.parts {
		dst = append(dst, p.Bytes...)
	}
	return dst
}

// MemberSize is how large the member of one frame is whose block is given.
func MemberSize(block []byte) int { return len(gzipHeader) + len(block) + gzipTrailer }

// inGzip returns the frame as a member of its own.
func (f *Frame) inGzip(format Format) []byte {
	m := beginMember(format, 0, nil, []*Frame{f})
	defer m.Release()
	m.end()
	return m.appendTo(make([]byte, 0, m.size))
}
