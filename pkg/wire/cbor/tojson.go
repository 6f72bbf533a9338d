package cbor

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"unicode/utf8"
)

// AppendJSON appends the CBOR item as compact JSON. It panics unless Check found that the
// item is in JSON's model or embeds JSON.
func AppendJSON(dst, item []byte) []byte {
	r := Reader{b: item}
	dst, err := r.AppendPayload(dst)
	if err != nil {
		panic("BUG: CBOR that was checked is no JSON: " + err.Error())
	}
	return dst
}

// EmbeddedJSON returns the JSON text that the CBOR item wraps (tag 262 on a byte string of
// definite length). The text is not checked, and not copied.
func EmbeddedJSON(item []byte) (text []byte, ok bool) {
	r := Reader{b: item}
	return r.embedded()
}

// embedded reads a wrapped JSON text. If there is none, it consumes nothing.
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

// AppendPayload appends a whole JSON payload. It checks everything except that keys differ.
func (r *Reader) AppendPayload(dst []byte) ([]byte, error) {
	if text, ok := r.embedded(); ok {
		if !json.Valid(text) || !utf8.Valid(text) {
			return dst, errNotJSON
		}
		return append(dst, text...), nil
	}
	return r.appendJSON(dst, 0)
}

func (r *Reader) appendJSON(dst []byte, depth int) ([]byte, error) {
	h, err := r.Head()
	if err != nil {
		return dst, err
	}
	switch h.Major {
	case Uint:
		return strconv.AppendUint(dst, h.Arg, 10), nil
	case Negative: // -1 less the argument
		if h.Arg == math.MaxUint64 {
			return append(dst, "-18446744073709551616"...), nil
		}
		return strconv.AppendUint(append(dst, '-'), h.Arg+1, 10), nil
	case Text:
		s, err := r.StringBody(h)
		return AppendJSONString(dst, s), err
	case Array, Map:
		return r.appendJSONElements(dst, h, depth+1)
	case Tag:
		if magnitude, ok := r.bignum(h.Arg); ok {
			n := new(big.Int).SetBytes(magnitude)
			if h.Arg == tagNegativeBignum {
				n.Not(n) // -1-n
			}
			return n.Append(dst, 10), nil
		}
	case Other:
		switch Other | h.info {
		case valueFalse:
			return append(dst, "false"...), nil
		case valueTrue:
			return append(dst, "true"...), nil
		case Null:
			return append(dst, "null"...), nil
		}
		if f, _ := h.float(); h.otherIsJSON() {
			return appendJSONFloat(dst, f), nil
		}
	}
	return dst, errNotJSON // also bytes
}

// appendJSONElements appends an array or a map whose head was read.
func (r *Reader) appendJSONElements(dst []byte, h Head, depth int) (_ []byte, err error) {
	if depth > MaxDepth {
		return dst, errDeep
	}
	brackets := "[]"
	if h.Major == Map {
		brackets = "{}"
	}
	dst = append(dst, brackets[0])
	for n := uint64(0); r.More(h, n); n++ {
		if n > 0 {
			dst = append(dst, ',')
		}
		if h.Major == Map {
			key, err := r.key()
			if err != nil {
				return dst, err
			}
			dst = append(AppendJSONString(dst, key), ':')
		}
		if dst, err = r.appendJSON(dst, depth); err != nil {
			return dst, err
		}
	}
	return append(dst, brackets[1]), nil
}

// key reads a text string.
func (r *Reader) key() ([]byte, error) {
	h, err := r.Head()
	if err == nil && h.Major != Text {
		err = errKey
	}
	if err != nil {
		return nil, err
	}
	return r.StringBody(h)
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
