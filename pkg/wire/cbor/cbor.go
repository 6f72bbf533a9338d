// Package cbor reads and writes CBOR items (RFC 8949), and turns JSON into CBOR and
// back. It keeps the order of fields and every digit of a number.
//
// It is written by hand for that reason: decoders into Go values keep neither. It is
// also faster. For a message of 170 bytes, github.com/fxamacker/cbor with encoding/json
// takes 7.5 times as long from JSON (44 allocations, here none) and 20 times as long
// to JSON (58 allocations, here none); see BenchmarkByGoValues.
package cbor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"unicode/utf8"
)

// The major types, in the first three bits of an item (RFC 8949, section 3.1).
const (
	Uint     = 0 << 5
	Negative = 1 << 5 // -1 less the argument
	Bytes    = 2 << 5
	Text     = 3 << 5
	Array    = 4 << 5
	Map      = 5 << 5
	Tag      = 6 << 5
	Other    = 7 << 5 // floats, and the values below
)

// Items of one byte.
const (
	valueFalse = Other | 20
	valueTrue  = Other | 21
	Null       = Other | 22
	valueBreak = Other | indefinite // ends an item of indefinite length
)

// The other five bits of the first byte, if they are not the argument itself.
const (
	oneByte    = 24 // the argument follows in one byte
	twoBytes   = 25
	fourBytes  = 26
	eightBytes = 27
	indefinite = 31
)

// MaxDepth is how deep a value may nest. MaxItemBytes is the largest item.
const (
	MaxDepth     = 64
	MaxItemBytes = 64 << 20
)

// The tags of values that JSON has.
const (
	tagBignum         = 2
	tagNegativeBignum = 3
	tagJSON           = 262 // on a byte string: JSON text
)

// AppendHead appends the shortest head that has argument n.
func AppendHead(dst []byte, major byte, n uint64) []byte {
	switch {
	case n < oneByte:
		return append(dst, major|byte(n))
	case n <= math.MaxUint8:
		return append(dst, major|oneByte, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, major|twoBytes), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, major|fourBytes), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, major|eightBytes), n)
}

// CloseHead writes the head with argument n at dst[at], where the caller left one byte.
// It moves the bytes after it if the head is longer.
func CloseHead(dst []byte, at int, major byte, n uint64) []byte {
	var head [9]byte
	return slices.Replace(dst, at, at+1, AppendHead(head[:0], major, n)...)
}

// AppendText appends a text string, which must be valid UTF-8.
func AppendText[T string | []byte](dst []byte, s T) []byte {
	return append(AppendHead(dst, Text, uint64(len(s))), s...)
}

// AppendBytes appends a byte string.
func AppendBytes(dst, b []byte) []byte {
	return append(AppendHead(dst, Bytes, uint64(len(b))), b...)
}

// AppendInt appends an integer.
func AppendInt(dst []byte, n int64) []byte {
	if n < 0 {
		return AppendHead(dst, Negative, uint64(-1-n))
	}
	return AppendHead(dst, Uint, uint64(n))
}

// The errors of CBOR that is not valid or has no form in JSON.
var (
	errCut       = errors.New("it ends within an item")
	errReserved  = errors.New("an item begins with a reserved byte")
	errBreak     = errors.New("a break is outside an item of indefinite length")
	errChunk     = errors.New("a part of a string of indefinite length is not a string of its type")
	errUTF8      = errors.New("a text string is not valid UTF-8")
	errDuplicate = errors.New("a map has the same key twice")
	errKind      = errors.New("an item has the wrong type")
	errKey       = errors.New("a key is not text")
	errNotJSON   = errors.New("it has no form in JSON")
)

// A Reader reads items. It never reads beyond its bytes, and allocates nothing for a
// length that is announced.
type Reader struct {
	b  []byte
	at int // of the next byte
}

// A Head is the beginning of an item.
type Head struct {
	Major byte
	info  byte   // the other five bits of the first byte
	Arg   uint64 // a count, a length, a number, a tag; 0 if info is indefinite
}

// Indefinite reports whether a break ends the item.
func (h Head) Indefinite() bool { return h.info == indefinite }

// IsNull reports whether the item is null.
func (h Head) IsNull() bool { return h.Major == Other && Other|h.info == Null }

// NewReader returns a Reader of b.
func NewReader(b []byte) *Reader { return &Reader{b: b} }

// Len returns the number of bytes that are left.
func (r *Reader) Len() int { return len(r.b) - r.at }

// Head reads a head. A break is Other and indefinite.
func (r *Reader) Head() (h Head, err error) {
	if r.at >= len(r.b) {
		return h, errCut
	}
	first := r.b[r.at]
	r.at++
	h.Major, h.info = first&^31, first&31
	switch {
	case h.info < oneByte:
		h.Arg = uint64(h.info)
		return h, nil
	case h.info <= eightBytes:
		argument, err := r.take(1 << (h.info - oneByte))
		for _, c := range argument {
			h.Arg = h.Arg<<8 | uint64(c)
		}
		return h, err
	case h.info == indefinite && h.Major != Uint && h.Major != Negative && h.Major != Tag:
		return h, nil
	}
	return h, errReserved
}

// take returns the next n bytes without copying them.
func (r *Reader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.b)-r.at) {
		return nil, errCut
	}
	from := r.at
	r.at += int(n)
	return r.b[from:r.at], nil
}

// ended consumes a break, and reports whether one was next.
func (r *Reader) ended() bool {
	if r.at < len(r.b) && r.b[r.at] == valueBreak {
		r.at++
		return true
	}
	return false
}

// More reports whether a container with head h has another element after n of them. It
// consumes the break that ends the container.
func (r *Reader) More(h Head, n uint64) bool {
	if h.Indefinite() {
		return !r.ended()
	}
	return n < h.Arg
}

// StringBody returns the content of a text or byte string whose head was read, without
// copying it if it has one part. Each part of a text must be whole characters (RFC 8949,
// section 3.2.3).
func (r *Reader) StringBody(h Head) ([]byte, error) { return r.stringBody(h, true) }

// stringBody joins the parts of a string of indefinite length only if join is set.
func (r *Reader) stringBody(h Head, join bool) (body []byte, err error) {
	if !h.Indefinite() {
		return r.chunk(h)
	}
	for !r.ended() {
		part, err := r.Head()
		if err == nil && (part.Major != h.Major || part.Indefinite()) {
			err = errChunk
		}
		var s []byte
		if err == nil {
			s, err = r.chunk(part)
		}
		if err != nil {
			return nil, err
		}
		if join {
			body = append(body, s...)
		}
	}
	return body, nil
}

// chunk returns the content of a string of definite length.
func (r *Reader) chunk(h Head) ([]byte, error) {
	s, err := r.take(h.Arg)
	if err == nil && h.Major == Text && !utf8.Valid(s) {
		err = errUTF8
	}
	return s, err
}

// The bounds of numbers that are converted between binary and decimal, which takes time
// by the square of their length. The largest number of maxBignumBytes has
// maxIntegerDigits.
const (
	maxBignumBytes   = 400
	maxIntegerDigits = 964
)

// bignum returns the bytes of a number whose tag was read, without leading zeros. It
// consumes nothing if the tag is not of a number, or the number is too long for JSON.
func (r *Reader) bignum(tag uint64) (magnitude []byte, ok bool) {
	if tag != tagBignum && tag != tagNegativeBignum {
		return nil, false
	}
	from := r.at
	h, err := r.Head()
	if err == nil && h.Major == Bytes && !h.Indefinite() {
		magnitude, err = r.take(h.Arg)
		magnitude = bytes.TrimLeft(magnitude, "\x00")
		if err == nil && len(magnitude) <= maxBignumBytes {
			return magnitude, true
		}
	}
	r.at = from
	return nil, false
}

// Uint reads an unsigned integer.
func (r *Reader) Uint() (uint64, error) {
	h, err := r.Head()
	if err == nil && h.Major != Uint {
		err = errKind
	}
	return h.Arg, err
}

// Int reads an integer that an int64 holds.
func (r *Reader) Int() (int64, error) {
	h, err := r.Head()
	switch {
	case err != nil:
		return 0, err
	case h.Arg > math.MaxInt64 || h.Major != Uint && h.Major != Negative:
		return 0, errKind
	case h.Major == Negative:
		return -1 - int64(h.Arg), nil
	}
	return int64(h.Arg), nil
}
