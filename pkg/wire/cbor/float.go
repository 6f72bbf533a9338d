package cbor

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/x448/float16"
)

// appendFloat appends f as the shortest float that is exactly f.
func appendFloat(dst []byte, f float64) []byte {
	single := float32(f)
	if float64(single) != f {
		return binary.BigEndian.AppendUint64(append(dst, Other|eightBytes), math.Float64bits(f))
	}
	if half := float16.Fromfloat32(single); half.Float32() == single {
		return binary.BigEndian.AppendUint16(append(dst, Other|twoBytes), half.Bits())
	}
	return binary.BigEndian.AppendUint32(append(dst, Other|fourBytes), math.Float32bits(single))
}

// float returns the float whose head is h. ok is false for another value.
func (h Head) float() (f float64, ok bool) {
	switch h.info {
	case twoBytes:
		return float64(float16.Frombits(uint16(h.Arg)).Float32()), true
	case fourBytes:
		return float64(math.Float32frombits(uint32(h.Arg))), true
	case eightBytes:
		return math.Float64frombits(h.Arg), true
	}
	return 0, false
}

// appendJSONFloat appends a finite f as the shortest decimal that reads as f, with a point
// or an exponent, so that it stays a float.
func appendJSONFloat(dst []byte, f float64) []byte {
	// Numbers near 0 are shorter with an exponent. No array of floats is then more than
	// eight times as long in JSON.
	if size := math.Abs(f); size != 0 && (size < 1e-3 || size >= 1e17) {
		dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
		if n := len(dst); dst[n-4] == 'e' && dst[n-2] == '0' { // an exponent such as e-07
			dst = append(dst[:n-2], dst[n-1])
		}
		return dst
	}
	from := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if bytes.IndexByte(dst[from:], '.') >= 0 {
		return dst
	}
	return append(dst, ".0"...)
}

// maxSureDigits is how many digits a decimal may have to be surely the shortest of the
// nearest float64 (IEEE 754), if that is not subnormal.
const maxSureDigits = 15

// isShortest reports whether a JSON number is the shortest decimal of f, however it is
// written.
func isShortest(number []byte, f float64) bool {
	var room, room2, room3 [40]byte
	digits, exponent := significand(room[:0], number)
	// Fast path: nearly all numbers.
	if size := math.Abs(f); len(digits) <= maxSureDigits && size > 1e-300 && size < 1e300 {
		return true
	}
	shortest, e := significand(room2[:0], strconv.AppendFloat(room3[:0], f, 'e', -1, 64))
	return bytes.Equal(digits, shortest) && (exponent == e || len(digits) == 0)
}

// significand returns a valid number as digits times ten to the exponent. The digits
// neither begin nor end with 0; there are none for 0.
func significand(dst, number []byte) (digits []byte, exponent int) {
	number = bytes.TrimPrefix(number, []byte{'-'})
	if e := bytes.IndexAny(number, "eE"); e >= 0 {
		exponent, _ = strconv.Atoi(string(number[e+1:])) // beyond any float64 if it is out of range
		number = number[:e]
	}
	whole, fraction, _ := bytes.Cut(number, []byte{'.'})
	digits = append(append(dst, whole...), fraction...)
	exponent += len(digits) - len(bytes.TrimRight(digits, "0")) - len(fraction)
	return bytes.Trim(digits, "0"), exponent
}
