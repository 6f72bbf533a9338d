package cbor

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"unicode/utf8"
)

// AppendJSON appends the CBOR item, which Check found to be in JSON's
// model or to embed JSON, as compact JSON. It panics on any other.
func AppendJSON(dst, item []byte) []byte {
	r := Reader{b: item}
	dst, err := r.AppendPayload(dst)
	if err != nil {
		panic("BUG: CBOR that was checked is no JSON: " + err.Error())
	}
	return dst
}

// EmbeddedJSON returns the JSON text that the CBOR item is a wrapping of (tag 262 on
// a byte string of known length), not checked and where it is.
func EmbeddedJSON(item []byte) (text []byte, ok bool) {
	r := Reader{b: item}
	return r.embedded()
}

// embedded reads JSON text; if there is none it consumes nothing.
func (r *Reader) embedded() (text []byte, ok bool) {
	from := r.at
	tag, err := r.Head()
	if err == nil && tag.Major == Tag && tag.Arg == tagJSON {
		h, err := r.Head()
		if err == nil && h.Major == Bytes && !h.Indefinite() {
			if text, err := r.take(h.Arg); err == nil {
				return text, true
			}
		}
	}
	r.at = from
	return nil, false
}

// AppendPayload appends a whole JSON payload. It checks all of it, but for keys that
// come twice.
func (r *Reader) AppendPayload(dst []byte) ([]byte, error) {
	if text, ok := r.embedded(); ok {
		return append(dst, text...), validJSON(text)
	}
	return r.appendJSON(dst, 0)
}

func validJSON(text []byte) error {
	if !json.Valid(text) || !utf8.Valid(text) {
		return ErrNotJSON
	}
	return nil
}

func (r *Reader) appendJSON(dst []byte, depth int) ([]byte, error) {
	h, err := r.Head()
	if err != nil {
		return dst, err
	}
	switch h.Major {
	case Uint:
		return strconv.AppendUint(dst, h.Arg, 10), nil
	case Negative:
		return appendNegative(dst, h.Arg), nil
	case Text:
		return r.appendJSONText(dst, h)
	case Array:
		return r.appendJSONArray(dst, h, depth+1)
	case Map:
		return r.appendJSONObject(dst, h, depth+1)
	case Tag:
		return r.appendBignum(dst, h.Arg)
	case Other:
		return appendOther(dst, h)
	}
	return dst, ErrNotJSON // bytes
}

// appendNegative appends -1-n.
func appendNegative(dst []byte, n uint64) []byte {
	if n == math.MaxUint64 {
		return append(dst, "-18446744073709551616"...)
	}
	return strconv.AppendUint(append(dst, '-'), n+1, 10)
}

func (r *Reader) appendJSONText(dst []byte, h Head) ([]byte, error) {
	if !h.Indefinite() { // nearly all
		s, err := r.take(h.Arg)
		if err == nil && !utf8.Valid(s) {
			err = errUTF8
		}
		return AppendJSONString(dst, s), err
	}
	s, err := r.Text(h)
	return AppendJSONString(dst, s), err
}

// Text returns a text string whose head was read.
func (r *Reader) Text(h Head) ([]byte, error) {
	from := r.at
	if err := r.chunks(h, validUTF8); err != nil {
		return nil, err
	}
	r.at = from
	return r.Bytes(h)
}

// validUTF8 is of a part of a text string, which must be whole characters
// (RFC 8949, section 3.2.3).
func validUTF8(part []byte) error {
	if !utf8.Valid(part) {
		return errUTF8
	}
	return nil
}

func (r *Reader) appendJSONArray(dst []byte, h Head, depth int) (_ []byte, err error) {
	if depth > MaxDepth {
		return dst, errDeep
	}
	dst = append(dst, '[')
	for n := uint64(0); r.More(h, n); n++ {
		if n > 0 {
			dst = append(dst, ',')
		}
		if dst, err = r.appendJSON(dst, depth); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

func (r *Reader) appendJSONObject(dst []byte, h Head, depth int) (_ []byte, err error) {
	if depth > MaxDepth {
		return dst, errDeep
	}
	dst = append(dst, '{')
	for n := uint64(0); r.More(h, n); n++ {
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

func (r *Reader) appendJSONKey(dst []byte) ([]byte, error) {
	h, err := r.Head()
	if err != nil {
		return dst, err
	}
	if h.Major != Text {
		return dst, ErrNotJSON
	}
	return r.appendJSONText(dst, h)
}

func (r *Reader) appendBignum(dst []byte, tag uint64) ([]byte, error) {
	if tag != tagBignum && tag != tagNegativeBignum {
		return dst, ErrNotJSON
	}
	magnitude, ok := r.bignum()
	if !ok {
		return dst, ErrNotJSON
	}
	n := new(big.Int).SetBytes(magnitude)
	if tag == tagNegativeBignum {
		n.Not(n) // -1-n
	}
	return n.Append(dst, 10), nil
}

// appendOther appends a float, false, true or null.
func appendOther(dst []byte, h Head) ([]byte, error) {
	if !h.otherIsJSON() {
		return dst, ErrNotJSON
	}
	switch Other | h.info {
	case valueFalse:
		return append(dst, "false"...), nil
	case valueTrue:
		return append(dst, "true"...), nil
	case Null:
		return append(dst, "null"...), nil
	}
	f, _ := h.float()
	return appendJSONFloat(dst, f), nil
}

// otherIsJSON reports whether the float or simple value with this head is in JSON's
// model.
func (h Head) otherIsJSON() bool {
	if f, ok := h.float(); ok {
		return !math.IsInf(f, 0) && !math.IsNaN(f)
	}
	first := Other | h.info
	return first == valueFalse || first == valueTrue || first == Null
}
