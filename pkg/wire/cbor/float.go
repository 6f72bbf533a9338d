package cbor

import (
	"encoding/binary"
	"math"
	"strconv"
)

// appendFloat appends f as the shortest float that is exactly f.
func appendFloat(dst []byte, f float64) []byte {
	single := float32(f)
	if float64(single) != f {
		return binary.BigEndian.AppendUint64(append(dst, Other|eightBytes), math.Float64bits(f))
	}
	if half, ok := halfOf(single); ok {
		return binary.BigEndian.AppendUint16(append(dst, Other|twoBytes), half)
	}
	return binary.BigEndian.AppendUint32(append(dst, Other|fourBytes), math.Float32bits(single))
}

// Parts of a binary16 and of a binary32 (IEEE 754): sign, exponent, fraction.
const (
	halfFraction, singleFraction = 10, 23 // bits
	halfBias, singleBias         = 15, 127
	halfSmallest                 = -24 // the exponent of the least number above 0
)

// halfOf returns a finite f as a binary16, if it is one exactly.
func halfOf(f float32) (half uint16, ok bool) {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	if f == 0 {
		return sign, true
	}
	exponent := int(b>>singleFraction&0xff) - singleBias
	fraction := b & (1<<singleFraction - 1)
	drop := singleFraction - halfFraction
	switch {
	case exponent < halfSmallest || exponent > halfBias:
		return 0, false
	case exponent > -halfBias:
		half = uint16(exponent+halfBias)<<halfFraction | uint16(fraction>>drop)
	default: // subnormal: the leading 1 is written, too
		drop += -halfBias + 1 - exponent
		fraction |= 1 << singleFraction
		half = uint16(fraction >> drop)
	}
	return sign | half, fraction&(1<<drop-1) == 0
}

// halfFloat returns what a binary16 stands for.
func halfFloat(half uint16) float64 {
	exponent, fraction := int(half>>halfFraction&31), float64(half&(1<<halfFraction-1))
	var f float64
	switch exponent {
	case 0:
		f = math.Ldexp(fraction, halfSmallest)
	case 31:
		f = math.Inf(1)
		if fraction != 0 {
			f = math.NaN()
		}
	default:
		f = math.Ldexp(fraction+1<<halfFraction, exponent+halfSmallest-1)
	}
	if half&0x8000 != 0 {
		return math.Copysign(f, -1)
	}
	return f
}

// float returns the float whose head is h; ok is false for another value.
func (h Head) float() (f float64, ok bool) {
	switch h.info {
	case twoBytes:
		return halfFloat(uint16(h.Arg)), true
	case fourBytes:
		return float64(math.Float32frombits(uint32(h.Arg))), true
	case eightBytes:
		return math.Float64frombits(h.Arg), true
	}
	return 0, false
}

// appendJSONFloat appends a finite f as the shortest decimal that is read as f, with
// a point or an exponent, so that it stays a float.
func appendJSONFloat(dst []byte, f float64) []byte {
	// Small numbers are shortest with an exponent: no array of floats is then
	// more than eight times as long in JSON.
	if size := math.Abs(f); size != 0 && (size < 1e-3 || size >= 1e17) {
		return shortExponent(strconv.AppendFloat(dst, f, 'e', -1, 64))
	}
	from := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	for _, c := range dst[from:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// shortExponent takes the 0 out of an exponent such as e-07.
func shortExponent(number []byte) []byte {
	if n := len(number); number[n-4] == 'e' && number[n-2] == '0' {
		number[n-2] = number[n-1]
		number = number[:n-1]
	}
	return number
}

// A decimal is digits times ten to the exponent. The digits neither begin nor end
// with 0; none are 0.
type decimal struct {
	digits   [maxFloatDigits]byte
	n        int
	exponent int
}

// maxFloatDigits is how many digits the shortest decimal of a float64 has at most;
// any decimal of up to sureDigits is the shortest of the float64 that is next to
// it (IEEE 754: 17 and 15), if that is not subnormal.
const (
	maxFloatDigits = 17
	sureDigits     = 15
)

// decimalOf reads a JSON number. It is not ok if that has more digits than any
// shortest decimal.
func decimalOf(number []byte) (d decimal, ok bool) {
	zeros, point := 0, false
	for i, c := range number {
		switch {
		case c == '-':
			continue
		case c == '.':
			point = true
			continue
		case c|0x20 == 'e':
			d.exponent += exponentOf(number[i+1:])
			d.exponent += zeros
			return d, true
		}
		if point {
			d.exponent--
		}
		if c == '0' {
			if d.n > 0 {
				zeros++
			}
			continue
		}
		if d.n+zeros >= maxFloatDigits {
			return d, false
		}
		for ; zeros > 0; zeros-- {
			d.digits[d.n] = '0'
			d.n++
		}
		d.digits[d.n] = c
		d.n++
	}
	d.exponent += zeros
	return d, true
}

// farExponent is beyond that of any float64.
const farExponent = 1 << 30

// exponentOf reads what stands behind the e of a number.
func exponentOf(text []byte) (n int) {
	negative := false
	for _, c := range text {
		switch {
		case c == '-':
			negative = true
		case c != '+' && n < farExponent/10:
			n = n*10 + int(c-'0')
		}
	}
	if negative {
		return -n
	}
	return n
}

// isShortestOf reports whether d is what f's shortest decimal is.
func (d *decimal) isShortestOf(f float64) bool {
	if size := math.Abs(f); d.n <= sureDigits && size > 1e-300 && size < 1e300 {
		return true // nearly all
	}
	if d.n == 0 {
		return f == 0
	}
	var room [32]byte
	shortest, _ := decimalOf(strconv.AppendFloat(room[:0], f, 'e', -1, 64))
	if shortest.n == 0 {
		return false // it became 0
	}
	return *d == shortest
}
