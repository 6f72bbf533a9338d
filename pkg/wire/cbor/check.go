package cbor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
)

// A Model says whether JSON has words for a CBOR item.
type Model uint8

// The models.
const (
	Only    Model = iota // something of it has no form in JSON
	IsJSON               // what AppendJSON appends is the same value
	HasJSON              // it is the wrapping of a JSON text, which was not checked: see EmbeddedJSON
)

var errDeep = fmt.Errorf("it is more than %d deep", MaxDepth)

// Check checks that body is one well-formed CBOR item (RFC 8949, appendix C)
// with valid UTF-8, at most MaxDepth deep (a number's tag is not counted),
// whose maps have no key twice, in whatever way they are written, and are keys of
// maps at most maxKeysInKeys times over; and says whether
// it is in JSON's model: text keys, no byte strings, no tags but those of bignums of
// up to 400 bytes, no simple values but false, true and null, only finite floats.
func Check(body []byte) (Model, error) {
	if len(body) == 0 {
		return Only, errors.New("the body is empty, which is not a CBOR item")
	}
	c := checkers.Get().(*checker)
	c.b, c.at, c.within, c.beyond = body, 0, 0, false
	model, err := c.whole()
	c.b, c.spare, c.keys = nil, nil, c.keys.emptied()
	checkers.Put(c)
	if err != nil {
		return Only, fmt.Errorf("the body is not one CBOR item: %w", err)
	}
	return model, nil
}

// A checker is one Check under way.
type checker struct {
	Reader
	beyond bool    // something was beyond JSON
	keys   mapKeys // each in its one form
	spare  []byte  // of keys that were written in another form
	within int     // how many keys what is read is part of, one in another
}

// maxKeysInKeys bounds within how many keys something may be: each is written once
// more to be compared.
const maxKeysInKeys = 4

var errKeys = fmt.Errorf("maps are in keys of maps more than %d times over", maxKeysInKeys)

var checkers = sync.Pool{New: func() any { return new(checker) }}

func (c *checker) whole() (Model, error) {
	err := c.item(0)
	switch {
	case err != nil:
		return Only, err
	case c.at < len(c.b):
		return Only, errors.New("there is more behind it")
	case !c.beyond:
		return IsJSON, nil
	}
	if _, ok := EmbeddedJSON(c.b); ok {
		return HasJSON, nil
	}
	return Only, nil
}

// item checks an item that so many others hold.
func (c *checker) item(depth int) error {
	h, err := c.Head()
	if err != nil {
		return err
	}
	switch h.Major {
	case Uint, Negative:
		return nil
	case Text:
		return c.chunks(h, validUTF8)
	case Bytes:
		c.beyond = true
		return c.chunks(h, anyBytes)
	case Other:
		return c.other(h)
	case Tag:
		return c.tagged(h.Arg, depth)
	}
	if depth == MaxDepth {
		return errDeep
	}
	if h.Major == Map {
		return c.members(h, depth+1)
	}
	return c.elements(h, depth+1)
}

func anyBytes([]byte) error { return nil }

// other checks a float or a simple value. One of those that have a byte of their
// own is not written in two (RFC 8949, section 3.3).
func (c *checker) other(h Head) error {
	switch {
	case h.Indefinite():
		return errBreak
	case h.info == oneByte && h.Arg < 32:
		return errReserved
	}
	c.beyond = c.beyond || !h.otherIsJSON()
	return nil
}

func (c *checker) tagged(tag uint64, depth int) error {
	if tag == tagBignum || tag == tagNegativeBignum {
		if _, ok := c.bignum(); ok {
			return nil
		}
	}
	c.beyond = true
	if depth == MaxDepth {
		return errDeep
	}
	return c.item(depth + 1)
}

func (c *checker) elements(h Head, depth int) error {
	for n := uint64(0); c.More(h, n); n++ {
		if err := c.item(depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) members(h Head, depth int) error {
	mine, spare := len(c.keys), len(c.spare)
	for n := uint64(0); c.More(h, n); n++ {
		if err := c.key(depth); err != nil {
			return err
		}
		if err := c.item(depth); err != nil {
			return err
		}
	}
	if !c.keys.shut(mine) {
		return errDuplicate
	}
	c.spare = c.spare[:spare]
	return nil
}

// key checks a key, and keeps it in its one form.
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
	key := Reader{b: c.b[:c.at], at: from}
	h, _ := key.Head()
	c.beyond = c.beyond || h.Major != Text
	if h.Major > Text || h.Indefinite() || key.at-from != headLen(h.Arg) {
		c.keys = append(c.keys, c.rewritten(from))
		return nil
	}
	c.keys = append(c.keys, c.b[from:c.at]) // nearly all
	return nil
}

// rewritten returns what was checked since from in its one form.
func (c *checker) rewritten(from int) []byte {
	r := Reader{b: c.b[:c.at], at: from}
	start := len(c.spare)
	c.spare = r.appendOneForm(c.spare)
	return c.spare[start:len(c.spare):len(c.spare)]
}

// appendOneForm appends a well-formed item so that the same value is the same bytes:
// heads the shortest, strings of one part, arrays and maps without a length, floats
// of eight bytes, bignums integers if they can be (RFC 8949, section 3.4.3). A map keeps its order: as part of a key, one in another order is
// another.
func (r *Reader) appendOneForm(dst []byte) []byte {
	h, _ := r.Head()
	switch h.Major {
	case Uint, Negative:
		return AppendHead(dst, h.Major, h.Arg)
	case Bytes, Text:
		s, _ := r.Bytes(h)
		return append(AppendHead(dst, h.Major, uint64(len(s))), s...)
	case Tag:
		return r.appendTagged(dst, h.Arg)
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

func (r *Reader) appendTagged(dst []byte, tag uint64) []byte {
	if tag != tagBignum && tag != tagNegativeBignum {
		return r.appendOneForm(AppendHead(dst, Tag, tag))
	}
	magnitude, ok := r.bignum()
	if !ok {
		return r.appendOneForm(AppendHead(dst, Tag, tag))
	}
	if len(magnitude) > 8 {
		return AppendBytes(AppendHead(dst, Tag, tag), magnitude)
	}
	n := uint64(0)
	for _, b := range magnitude {
		n = n<<8 | uint64(b)
	}
	return AppendHead(dst, byte(tag-tagBignum)<<5, n)
}
