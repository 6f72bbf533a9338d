package cbor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"sync"
)

// A Model says whether JSON can express a CBOR item.
type Model uint8

// The models.
const (
	Only    Model = iota // some part of it has no form in JSON
	IsJSON               // AppendJSON appends the same value
	HasJSON              // it wraps a JSON text, which was not checked: see EmbeddedJSON
)

var errDeep = fmt.Errorf("it nests more than %d deep", MaxDepth)

// Check checks that body is one well-formed CBOR item (RFC 8949, appendix C) with valid
// UTF-8, at most MaxDepth deep; the tag of a number does not count. No map may have a key
// twice, however the two are encoded, or be within more than maxKeysInKeys keys.
//
// The item is in JSON's model if all its keys are text, all its floats are finite, and it
// has no byte strings. Its only tags are those of bignums of up to 400 bytes. Its only
// simple values are false, true and null.
func Check(body []byte) (Model, error) {
	if len(body) == 0 {
		return Only, errors.New("the body is empty, which is not a CBOR item")
	}
	c := checkers.Get().(*checker)
	c.b, c.at, c.within, c.beyond = body, 0, 0, false
	err := c.item(0)
	isWhole, beyond := c.at == len(body), c.beyond
	c.b, c.spare, c.keys = nil, nil, c.keys.emptied()
	checkers.Put(c)
	if err == nil && !isWhole {
		err = errors.New("more bytes follow it")
	}
	if err != nil {
		return Only, fmt.Errorf("the body is not one CBOR item: %w", err)
	}
	if !beyond {
		return IsJSON, nil
	}
	if _, ok := EmbeddedJSON(body); ok {
		return HasJSON, nil
	}
	return Only, nil
}

// A checker checks one item.
type checker struct {
	Reader
	beyond bool    // a part has no form in JSON
	keys   mapKeys // each in its one form
	spare  []byte  // memory of the keys that had another form
	within int     // the number of keys, one in another, that the next item is part of
}

// maxKeysInKeys bounds checker.within. Each of these keys may be copied once more to be
// compared.
const maxKeysInKeys = 4

var errKeys = fmt.Errorf("maps nest in keys of maps more than %d deep", maxKeysInKeys)

var checkers = sync.Pool{New: func() any { return new(checker) }}

// item checks an item at the given depth.
func (c *checker) item(depth int) error {
	h, err := c.Head()
	if err != nil {
		return err
	}
	switch h.Major {
	case Text, Bytes:
		c.beyond = c.beyond || h.Major == Bytes
		_, err = c.stringBody(h, false)
	case Other:
		c.beyond = c.beyond || !h.otherIsJSON()
		switch {
		case h.Indefinite():
			err = errBreak
		case h.info == oneByte && h.Arg < 32: // RFC 8949, section 3.3: such values have one byte
			err = errReserved
		}
	case Tag:
		if _, ok := c.bignum(h.Arg); ok {
			return nil
		}
		c.beyond = true
		if depth == MaxDepth {
			return errDeep
		}
		err = c.item(depth + 1)
	case Array, Map:
		if depth == MaxDepth {
			return errDeep
		}
		err = c.elements(h, depth+1)
	}
	return err
}

// elements checks what an array or a map holds.
func (c *checker) elements(h Head, depth int) error {
	keys, spare := len(c.keys), len(c.spare)
	for n := uint64(0); c.More(h, n); n++ {
		if h.Major == Map {
			if err := c.key(depth); err != nil {
				return err
			}
		}
		if err := c.item(depth); err != nil {
			return err
		}
	}
	if !c.keys.close(keys) {
		return errDuplicate
	}
	c.spare = c.spare[:spare]
	return nil
}

// key checks a key and keeps it in its one form.
func (c *checker) key(depth int) error {
	if c.within == maxKeysInKeys {
		return errKeys
	}
	from := c.at
	c.within++
	err := c.item(depth)
	c.within--
	if err != nil {
		return err
	}
	r := Reader{b: c.b[:c.at], at: from}
	h, _ := r.Head()
	c.beyond = c.beyond || h.Major != Text
	key := c.b[from:c.at]
	// Fast path: nearly all keys are strings or integers with the shortest head.
	var shortest [9]byte
	if h.Major > Text || h.Indefinite() || r.at-from != len(AppendHead(shortest[:0], 0, h.Arg)) {
		r.at = from
		start := len(c.spare)
		c.spare = r.appendOneForm(c.spare)
		key = c.spare[start:len(c.spare):len(c.spare)]
	}
	c.keys = append(c.keys, key)
	return nil
}

// appendOneForm appends a well-formed item so that equal values have equal bytes: with the
// shortest heads, strings of one part, arrays and maps of indefinite length, floats of
// eight bytes, and integers for bignums that fit (RFC 8949, section 3.4.3). A map keeps its
// order: as part of a key, a map in another order is another key.
func (r *Reader) appendOneForm(dst []byte) []byte {
	h, _ := r.Head()
	switch h.Major {
	case Uint, Negative:
		return AppendHead(dst, h.Major, h.Arg)
	case Bytes, Text:
		s, _ := r.StringBody(h)
		return append(AppendHead(dst, h.Major, uint64(len(s))), s...)
	case Tag:
		magnitude, ok := r.bignum(h.Arg)
		switch {
		case !ok:
			return r.appendOneForm(AppendHead(dst, Tag, h.Arg))
		case len(magnitude) > 8:
			return AppendBytes(AppendHead(dst, Tag, h.Arg), magnitude)
		}
		return AppendHead(dst, byte(h.Arg-tagBignum)<<5, new(big.Int).SetBytes(magnitude).Uint64())
	case Other:
		if f, ok := h.float(); ok {
			return binary.BigEndian.AppendUint64(append(dst, Other|eightBytes), math.Float64bits(f))
		}
		return AppendHead(dst, h.Major, h.Arg)
	}
	dst = append(dst, h.Major|indefinite)
	for n := uint64(0); r.More(h, n); n++ {
		dst = r.appendOneForm(dst)
		if h.Major == Map {
			dst = r.appendOneForm(dst)
		}
	}
	return append(dst, valueBreak)
}
