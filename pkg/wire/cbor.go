package wire

import (
	"encoding/binary"
	"errors"
	"math"
)

// What stands in the first three bits of an item's first byte (RFC 8949,
// section 3.1).
const (
	cborUint     = 0 << 5
	cborNegative = 1 << 5 // -1 less the argument
	cborBytes    = 2 << 5
	cborText     = 3 << 5
	cborArray    = 4 << 5
	cborMap      = 5 << 5
	cborTag      = 6 << 5
	cborOther    = 7 << 5 // floats, and the values below
)

// Items of one byte.
const (
	cborFalse     = cborOther | 20
	cborTrue      = cborOther | 21
	cborNull      = cborOther | 22
	cborUndefined = cborOther | 23
	cborBreak     = cborOther | indefinite // ends what has no length
)

// The second part of a first byte, where it is not the argument itself.
const (
	oneByte    = 24 // the argument follows in so many
	twoBytes   = 25
	fourBytes  = 26
	eightBytes = 27
	indefinite = 31
)

// The tags that JSON's values come under.
const (
	tagBignum         = 2
	tagNegativeBignum = 3
	tagJSON           = 262 // on a byte string: JSON text
)

// appendHead appends the shortest head that has argument n.
func appendHead(dst []byte, major byte, n uint64) []byte {
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

// headLen returns the length of the shortest head with argument n.
func headLen(n uint64) int {
	switch {
	case n < oneByte:
		return 1
	case n <= math.MaxUint8:
		return 2
	case n <= math.MaxUint16:
		return 3
	case n <= math.MaxUint32:
		return 5
	}
	return 9
}

// closeHead writes the head with argument n at dst[at], where one byte was left for
// it, and moves what stands behind it if it is longer.
func closeHead(dst []byte, at int, major byte, n uint64) []byte {
	if more := headLen(n) - 1; more > 0 {
		var room [8]byte
		dst = append(dst, room[:more]...)
		copy(dst[at+1+more:], dst[at+1:])
	}
	appendHead(dst[:at], major, n)
	return dst
}

func appendCBORText[T string | []byte](dst []byte, s T) []byte {
	return append(appendHead(dst, cborText, uint64(len(s))), s...)
}

func appendCBORBytes(dst, b []byte) []byte {
	return append(appendHead(dst, cborBytes, uint64(len(b))), b...)
}

func appendCBORInt(dst []byte, n int64) []byte {
	if n < 0 {
		return appendHead(dst, cborNegative, uint64(-1-n))
	}
	return appendHead(dst, cborUint, uint64(n))
}

// What may be wrong with CBOR, beside its depth.
var (
	errCBORCut       = errors.New("it ends within an item")
	errCBORReserved  = errors.New("an item begins with a reserved byte")
	errCBORBreak     = errors.New("a break stands where nothing is to be ended")
	errCBORChunk     = errors.New("a string of no length has a part that is no string of its kind")
	errCBORUTF8      = errors.New("a text string is not valid UTF-8")
	errCBORDuplicate = errors.New("a map has the same key twice")
	errCBORNotJSON   = errors.New("it has no form in JSON")
)

// A cborReader reads items. It never reads beyond its bytes, and takes no memory
// for what is only announced.
type cborReader struct {
	b  []byte
	at int // of the next byte
}

// A cborHead is what an item begins with.
type cborHead struct {
	major byte
	info  byte   // the other five bits of the first byte
	arg   uint64 // a count, a length, a number, a tag; 0 if info is indefinite
}

func (h cborHead) indefinite() bool { return h.info == indefinite }

// head reads a head. A break comes as cborOther and indefinite.
func (r *cborReader) head() (h cborHead, err error) {
	if r.at >= len(r.b) {
		return h, errCBORCut
	}
	first := r.b[r.at]
	r.at++
	h.major, h.info = first&^31, first&31
	switch {
	case h.info < oneByte:
		h.arg = uint64(h.info)
		return h, nil
	case h.info <= eightBytes:
		h.arg, err = r.argument(1 << (h.info - oneByte))
		return h, err
	case h.info == indefinite && h.major != cborUint && h.major != cborNegative && h.major != cborTag:
		return h, nil
	}
	return h, errCBORReserved
}

// argument reads a number of n bytes: 1, 2, 4 or 8.
func (r *cborReader) argument(n int) (arg uint64, err error) {
	if len(r.b)-r.at < n {
		return 0, errCBORCut
	}
	for _, c := range r.b[r.at : r.at+n] {
		arg = arg<<8 | uint64(c)
	}
	r.at += n
	return arg, nil
}

// take returns the next n bytes, where they are.
func (r *cborReader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.b)-r.at) {
		return nil, errCBORCut
	}
	from := r.at
	r.at += int(n)
	return r.b[from:r.at], nil
}

// ended consumes a break, if there is one.
func (r *cborReader) ended() bool {
	if r.at < len(r.b) && r.b[r.at] == cborBreak {
		r.at++
		return true
	}
	return false
}

// more reports whether a container with head h has another element after n of
// them. It consumes the break that ends one.
func (r *cborReader) more(h cborHead, n uint64) bool {
	if h.indefinite() {
		return !r.ended()
	}
	return n < h.arg
}

// chunks calls each with the parts of a string whose head was read.
func (r *cborReader) chunks(h cborHead, each func([]byte) error) error {
	if !h.indefinite() {
		b, err := r.take(h.arg)
		if err != nil {
			return err
		}
		return each(b)
	}
	for !r.ended() {
		part, err := r.head()
		switch {
		case err != nil:
			return err
		case part.major != h.major || part.indefinite():
			return errCBORChunk
		}
		if err := r.chunks(part, each); err != nil {
			return err
		}
	}
	return nil
}

// bytes returns a string whose head was read: where it is, if it has one part.
func (r *cborReader) bytes(h cborHead) ([]byte, error) {
	if !h.indefinite() {
		return r.take(h.arg)
	}
	var whole []byte
	err := r.chunks(h, func(part []byte) error { whole = append(whole, part...); return nil })
	return whole, err
}

// maxBignumBytes bounds the numbers that are turned from binary to decimal and
// back, which takes time by the square of their length. The largest has
// maxIntegerDigits.
const (
	maxBignumBytes   = 400
	maxIntegerDigits = 964
)

// bignum returns the bytes of a number whose tag was read, without zeros before it.
// If it is none, or too long to be turned into JSON, it consumes nothing.
func (r *cborReader) bignum() (magnitude []byte, ok bool) {
	from := r.at
	h, err := r.head()
	if err == nil && h.major == cborBytes && !h.indefinite() {
		magnitude, err = r.take(h.arg)
		for len(magnitude) > 0 && magnitude[0] == 0 {
			magnitude = magnitude[1:]
		}
		if err == nil && len(magnitude) <= maxBignumBytes {
			return magnitude, true
		}
	}
	r.at = from
	return nil, false
}
