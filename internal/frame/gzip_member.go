package frame

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"
)

// A GzipMember is the body of an answer as one gzip member (RFC 1952). It is built of blocks that
// all answers share. A browser stops reading after the first member, so the frames of an
// answer cannot be a member each:
//
//	+----------+-----------------+------------------------+- - -+-------+--------+--------+
//	| header   | stored block:   | a frame's block, see   |     | 03 00 | CRC-32 | length |
//	| 10 bytes | hello, short    | Deflated               |     | final | of all that is  |
//	|          | frames, gaps    |                        |     | block | decompressed    |
//	+----------+-----------------+------------------------+- - -+-------+-----------------+
type GzipMember struct {
	parts []Part
	own   []byte // memory of the parts that are no frame's; grows only in add
	size  int
	crc   uint32
	raw   int

	stored []byte // header of the last stored block
	room   int    // how many more bytes that block takes
}

// A Part is some bytes of a GzipMember: a frame's, or its own, which are valid until its
// Release.
type Part struct {
	Bytes []byte
	Frame *Frame // nil: its own
}

// The sizes around a member, and around a stored block (RFC 1951, section 3.2.4).
const (
	gzipTrailer  = 2 + 4 + 4
	storedHeader = 1 + 2 + 2
	maxStored    = 1<<16 - 1
)

// gzipHeader has no name, time or operating system.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}

var members = sync.Pool{New: func() any { return new(GzipMember) }}

// TakeGzipMember returns lead, which may be nil, and frames as a member. It returns nil if
// deflating pays for none of the frames; see Deflated. The caller must Release the member
// when it is written.
func TakeGzipMember(format Format, least int, lead []byte, frames []*Frame) *GzipMember {
	m := BeginGzipMember(format, least, lead, frames)
	if m != nil {
		m.end()
	}
	return m
}

// BeginGzipMember is TakeGzipMember for a member that Continue ends.
func BeginGzipMember(format Format, least int, lead []byte, frames []*Frame) *GzipMember {
	pays := func(f *Frame) bool {
		_, pays := f.Deflated(format, least)
		return pays
	}
	if !slices.ContainsFunc(frames, pays) {
		return nil
	}
	m := members.Get().(*GzipMember)
	m.put(gzipHeader, nil)
	m.add(format, least, lead, frames)
	return m
}

// Continue replaces the parts, which were written, by those of more frames. Without frames
// it ends the member.
func (m *GzipMember) Continue(format Format, least int, frames []*Frame) {
	clear(m.parts)
	m.parts, m.own, m.room = m.parts[:0], m.own[:0], 0
	m.add(format, least, nil, frames)
	if len(frames) == 0 {
		m.end()
	}
}

// maxMember is how many parts a member keeps memory for.
const maxMember = 4096

// Release returns the member's memory to the pool.
func (m *GzipMember) Release() {
	if cap(m.parts) > maxMember {
		return
	}
	clear(m.parts)
	*m = GzipMember{parts: m.parts[:0], own: m.own[:0]}
	members.Put(m)
}

// Parts returns the parts in order. The caller must not change them.
func (m *GzipMember) Parts() []Part { return m.parts }

// Size returns the size of all parts, with those that Continue has replaced.
func (m *GzipMember) Size() int { return m.size }

// Raw returns the size of all that is decompressed.
func (m *GzipMember) Raw() int { return m.raw }

// MemberSize returns the size of a member with one frame, which has the given block.
func MemberSize(block []byte) int { return len(gzipHeader) + len(block) + gzipTrailer }

// add appends lead and frames. It first grows own for all their headers and the trailer:
// parts refer to own, which must not move later.
func (m *GzipMember) add(format Format, least int, lead []byte, frames []*Frame) {
	headers := 1 + len(lead)/maxStored
	for _, f := range frames {
		headers += 1 + len(f.Bytes(format))/maxStored
	}
	m.own = slices.Grow(m.own, headers*storedHeader+gzipTrailer)
	m.store(lead, nil)
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

// sum adds text to the checksum and the length of what is decompressed.
func (m *GzipMember) sum(text []byte) {
	m.raw += len(text)
	m.crc = crc32.Update(m.crc, crc32.IEEETable, text)
}

func (m *GzipMember) put(b []byte, f *Frame) {
	m.parts = append(m.parts, Part{b, f})
	m.size += len(b)
}

// make appends n bytes of the member's own and returns them.
func (m *GzipMember) make(n int) []byte {
	m.own = m.own[:len(m.own)+n]
	b := m.own[len(m.own)-n:]
	m.put(b, nil)
	return b
}

// store appends text uncompressed. f is its frame, or nil.
func (m *GzipMember) store(text []byte, f *Frame) {
	m.sum(text)
	for len(text) > 0 {
		if m.room == 0 {
			m.stored, m.room = m.make(storedHeader), maxStored
		}
		n := min(len(text), m.room)
		m.put(text[:n], f)
		m.room -= n
		length := uint16(maxStored - m.room)
		m.stored[0] = 0 // not final, stored, padding
		binary.LittleEndian.PutUint16(m.stored[1:], length)
		binary.LittleEndian.PutUint16(m.stored[3:], ^length)
		text = text[n:]
	}
}

// end appends a final, empty block and the trailer.
func (m *GzipMember) end() {
	b := m.make(gzipTrailer)
	b[0], b[1] = 3, 0 // final, fixed codes, end of block
	binary.LittleEndian.PutUint32(b[2:], m.crc)
	binary.LittleEndian.PutUint32(b[6:], uint32(m.raw)) // modulo 2^32
}
