package wire

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"unicode/utf8"
)

// AppendJSONFromCBOR appends the CBOR item, which CheckCBOR found to be in JSON's
// model or to embed JSON, as compact JSON. It panics on any other.
func AppendJSONFromCBOR(dst, item []byte) []byte {
	r := cborReader{b: item}
	dst, err := r.appendPayload(dst)
	if err != nil {
		panic("BUG: CBOR that was checked is no JSON: " + err.Error())
	}
	return dst
}

// EmbeddedJSON returns the JSON text that the CBOR item is a wrapping of (tag 262 on
// a byte string of known length), not checked and where it is.
func EmbeddedJSON(item []byte) (text []byte, ok bool) {
	r := cborReader{b: item}
	return r.embedded()
}

// embedded reads JSON text; if there is none it consumes nothing.
func (r *cborReader) embedded() (text []byte, ok bool) {
	from := r.at
	tag, err := r.head()
	if err == nil && tag.major == cborTag && tag.arg == tagJSON {
		h, err := r.head()
		if err == nil && h.major == cborBytes && !h.indefinite() {
			if text, err := r.take(h.arg); err == nil {
				return text, true
			}
		}
	}
	r.at = from
	return nil, false
}

// appendPayload appends a whole JSON payload. It checks all of it, but for keys that
// come twice.
func (r *cborReader) appendPayload(dst []byte) ([]byte, error) {
	if text, ok := r.embedded(); ok {
		return append(dst, text...), validJSON(text)
	}
	return r.appendJSON(dst, 0)
}

func validJSON(text []byte) error {
	if !json.Valid(text) || !utf8.Valid(text) {
		return errCBORNotJSON
	}
	return nil
}

func (r *cborReader) appendJSON(dst []byte, depth int) ([]byte, error) {
	h, err := r.head()
	if err != nil {
		return dst, err
	}
	switch h.major {
	case cborUint:
		return strconv.AppendUint(dst, h.arg, 10), nil
	case cborNegative:
		return appendNegative(dst, h.arg), nil
	case cborText:
		return r.appendJSONText(dst, h)
	case cborArray:
		return r.appendJSONArray(dst, h, depth+1)
	case cborMap:
		return r.appendJSONObject(dst, h, depth+1)
	case cborTag:
		return r.appendBignum(dst, h.arg)
	case cborOther:
		return appendOther(dst, h)
	}
	return dst, errCBORNotJSON // bytes
}

// appendNegative appends -1-n.
func appendNegative(dst []byte, n uint64) []byte {
	if n == math.MaxUint64 {
		return append(dst, "-18446744073709551616"...)
	}
	return strconv.AppendUint(append(dst, '-'), n+1, 10)
}

func (r *cborReader) appendJSONText(dst []byte, h cborHead) ([]byte, error) {
	if !h.indefinite() { // nearly all
		s, err := r.take(h.arg)
		if err == nil && !utf8.Valid(s) {
			err = errCBORUTF8
		}
		return appendString(dst, s), err
	}
	s, err := r.text(h)
	return appendString(dst, s), err
}

// text returns a text string whose head was read.
func (r *cborReader) text(h cborHead) ([]byte, error) {
	from := r.at
	if err := r.chunks(h, validUTF8); err != nil {
		return nil, err
	}
	r.at = from
	return r.bytes(h)
}

// validUTF8 is of a part of a text string, which must be whole characters
// (RFC 8949, section 3.2.3).
func validUTF8(part []byte) error {
	if !utf8.Valid(part) {
		return errCBORUTF8
	}
	return nil
}

func (r *cborReader) appendJSONArray(dst []byte, h cborHead, depth int) (_ []byte, err error) {
	if depth > MaxJSONDepth {
		return dst, errCBORDeep
	}
	dst = append(dst, '[')
	for n := uint64(0); r.more(h, n); n++ {
		if n > 0 {
			dst = append(dst, ',')
		}
		if dst, err = r.appendJSON(dst, depth); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

func (r *cborReader) appendJSONObject(dst []byte, h cborHead, depth int) (_ []byte, err error) {
	if depth > MaxJSONDepth {
		return dst, errCBORDeep
	}
	dst = append(dst, '{')
	for n := uint64(0); r.more(h, n); n++ {
		if n > 0 {
			dst = append(dst, ',')
		}
		if dst, err = r.appendJSONKey(dst); err != nil {
			return dst, err
		}
		if dst, err = r.appendJSON(append(dst, ':'), depth); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

func (r *cborReader) appendJSONKey(dst []byte) ([]byte, error) {
	h, err := r.head()
	if err != nil {
		return dst, err
	}
	if h.major != cborText {
		return dst, errCBORNotJSON
	}
	return r.appendJSONText(dst, h)
}

func (r *cborReader) appendBignum(dst []byte, tag uint64) ([]byte, error) {
	if tag != tagBignum && tag != tagNegativeBignum {
		return dst, errCBORNotJSON
	}
	magnitude, ok := r.bignum()
	if !ok {
		return dst, errCBORNotJSON
	}
	n := new(big.Int).SetBytes(magnitude)
	if tag == tagNegativeBignum {
		n.Not(n) // -1-n
	}
	return n.Append(dst, 10), nil
}

// appendOther appends a float, false, true or null.
func appendOther(dst []byte, h cborHead) ([]byte, error) {
	if !h.otherIsJSON() {
		return dst, errCBORNotJSON
	}
	switch cborOther | h.info {
	case cborFalse:
		return append(dst, "false"...), nil
	case cborTrue:
		return append(dst, "true"...), nil
	case cborNull:
		return append(dst, "null"...), nil
	}
	f, _ := h.float()
	return appendJSONFloat(dst, f), nil
}

// otherIsJSON reports whether the float or simple value with this head is in JSON's
// model.
func (h cborHead) otherIsJSON() bool {
	if f, ok := h.float(); ok {
		return !math.IsInf(f, 0) && !math.IsNaN(f)
	}
	first := cborOther | h.info
	return first == cborFalse || first == cborTrue || first == cborNull
}
