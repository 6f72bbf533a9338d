package transports

import "encoding/binary"

// Major types of CBOR (RFC 8949, section 3.1), and null.
const (
	cborUnsigned = 0
	cborString   = 3
	cborArray    = 4
	cborMap      = 5

	cborNull = 0xf6
)

// cborHead appends a head in its shortest form.
func cborHead(b []byte, major byte, n uint64) []byte {
	major <<= 5
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), n)
}

func cborText(s string) []byte { return append(cborHead(nil, cborString, uint64(len(s))), s...) }

// readUnsigned reads an unsigned integer in its shortest form: its length,
// incomplete, or different.
func readUnsigned(b []byte) (n uint64, length int) {
	if len(b) == 0 {
		return 0, incomplete
	}
	if b[0] < 24 {
		return uint64(b[0]), 1
	}
	if b[0] > 27 {
		return 0, different
	}
	if length = 1 + 1<<(b[0]-24); len(b) < length {
		return 0, incomplete
	}
	least := uint64(24)
	switch length {
	case 2:
		n = uint64(b[1])
	case 3:
		n, least = uint64(binary.BigEndian.Uint16(b[1:])), 1<<8
	case 5:
		n, least = uint64(binary.BigEndian.Uint32(b[1:])), 1<<16
	case 9:
		n, least = binary.BigEndian.Uint64(b[1:]), 1<<32
	}
	if n < least {
		return 0, different
	}
	return n, length
}
