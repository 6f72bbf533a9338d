package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
)

// A CBORModel says whether JSON has words for a CBOR item.
type CBORModel uint8

// The models.
const (
	CBOROnly    CBORModel = iota // something of it has no form in JSON
	CBORIsJSON                   // what AppendJSONFromCBOR appends is the same value
	CBORHasJSON                  // it is the wrapping of a JSON text, which was not checked: see EmbeddedJSON
)

var errCBORDeep = fmt.Errorf("it is more than %d deep", MaxJSONDepth)

// CheckCBOR checks that body is one well-formed CBOR item (RFC 8949, appendix C)
// with valid UTF-8, at most MaxJSONDepth deep (a number's tag is not counted),
// whose maps have no key twice, in whatever way they are written, and are keys of
// maps at most maxKeysInKeys times over; and says whether
// it is in JSON's model: text keys, no byte strings, no tags but those of bignums of
// up to 400 bytes, no simple values but false, true and null, only finite floats.
func CheckCBOR(body []byte) (CBORModel, error) {
	if len(body) == 0 {
		return CBOROnly, errors.New("the body is empty, which is not a CBOR item")
	}
	c := cborChecks.Get().(*cborCheck)
	c.b, c.at, c.within, c.beyond = body, 0, 0, false
	model, err := c.whole()
	c.b, c.spare, c.keys = nil, nil, c.keys.emptied()
	cborChecks.Put(c)
	if err != nil {
		return CBOROnly, fmt.Errorf("the body is not one CBOR item: %w", err)
	}
	return model, nil
}

// A cborCheck is one CheckCBOR under way.
type cborCheck struct {
	cborReader
	beyond bool    // something was beyond JSON
	keys   mapKeys // each in its one form
	spare  []byte  // of keys that were written in another form
	within int     // how many keys what is read is part of, one in another
}

// maxKeysInKeys bounds within how many keys something may be: each is written once
// more to be compared.
const maxKeysInKeys = 4

var errCBORKeys = fmt.Errorf("maps are in keys of maps more than %d times over", maxKeysInKeys)

var cborChecks = sync.Pool{New: func() any { return new(cborCheck) }}

func (c *cborCheck) whole() (CBORModel, error) {
	err := c.item(0)
	switch {
	case err != nil:
		return CBOROnly, err
	case c.at < len(c.b):
		return CBOROnly, errors.New("there is more behind it")
	case !c.beyond:
		return CBORIsJSON, nil
	}
	if _, ok := EmbeddedJSON(c.b); ok {
		return CBORHasJSON, nil
	}
	return CBOROnly, nil
}

// item checks an item that so many others hold.
func (c *cborCheck) item(depth int) error {
	h, err := c.head()
	if err != nil {
		return err
	}
	switch h.major {
	case cborUint, cborNegative:
		return nil
	case cborText:
		return c.chunks(h, validUTF8)
	case cborBytes:
		c.beyond = true
		return c.chunks(h, anyBytes)
	case cborOther:
		return c.other(h)
	case cborTag:
		return c.tagged(h.arg, depth)
	}
	if depth == MaxJSONDepth {
		return errCBORDeep
	}
	if h.major == cborMap {
		return c.members(h, depth+1)
	}
	return c.elements(h, depth+1)
}

func anyBytes([]byte) error { return nil }

// other checks a float or a simple value. One of those that have a byte of their
// own is not written in two (RFC 8949, section 3.3).
func (c *cborCheck) other(h cborHead) error {
	switch {
	case h.indefinite():
		return errCBORBreak
	case h.info == oneByte && h.arg < 32:
		return errCBORReserved
	}
	c.beyond = c.beyond || !h.otherIsJSON()
	return nil
}

func (c *cborCheck) tagged(tag uint64, depth int) error {
	if tag == tagBignum || tag == tagNegativeBignum {
		if _, ok := c.bignum(); ok {
			return nil
		}
	}
	c.beyond = true
	if depth == MaxJSONDepth {
		return errCBORDeep
	}
	return c.item(depth + 1)
}

func (c *cborCheck) elements(h cborHead, depth int) error {
	for n := uint64(0); c.more(h, n); n++ {
		if err := c.item(depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *cborCheck) members(h cborHead, depth int) error {
	mine, spare := len(c.keys), len(c.spare)
	for n := uint64(0); c.more(h, n); n++ {
		if err := c.key(depth); err != nil {
			return err
		}
		if err := c.item(depth); err != nil {
			return err
		}
	}
	if !c.keys.shut(mine) {
		return errCBORDuplicate
	}
	c.spare = c.spare[:spare]
	return nil
}

// key checks a key, and keeps it in its one form.
func (c *cborCheck) key(depth int) error {
	if c.within == maxKeysInKeys {
		return errCBORKeys
	}
	from := c.at
	c.within++
	err := c.item(depth)
	c.within--
	if err != nil {
		return err
	}
	key := cborReader{b: c.b[:c.at], at: from}
	h, _ := key.head()
	c.beyond = c.beyond || h.major != cborText
	if h.major > cborText || h.indefinite() || key.at-from != headLen(h.arg) {
		c.keys = append(c.keys, c.rewritten(from))
		return nil
	}
	c.keys = append(c.keys, c.b[from:c.at]) // nearly all
	return nil
}

// rewritten returns what was checked since from in its one form.
func (c *cborCheck) rewritten(from int) []byte {
	r := cborReader{b: c.b[:c.at], at: from}
	start := len(c.spare)
	c.spare = r.appendOneForm(c.spare)
	return c.spare[start:len(c.spare):len(c.spare)]
}

// appendOneForm appends a well-formed item so that the same value is the same bytes:
// heads the shortest, strings of one part, arrays and maps without a length, floats
// of eight bytes, bignums integers if they can be (RFC 8949, section 3.4.3). A map keeps its order: as part of a key, one in another order is
// another.
func (r *cborReader) appendOneForm(dst []byte) []byte {
	h, _ := r.head()
	switch h.major {
	case cborUint, cborNegative:
		return appendHead(dst, h.major, h.arg)
	case cborBytes, cborText:
		s, _ := r.bytes(h)
		return append(appendHead(dst, h.major, uint64(len(s))), s...)
	case cborTag:
		return r.appendTagged(dst, h.arg)
	case cborOther:
		if f, ok := h.float(); ok {
			return binary.BigEndian.AppendUint64(append(dst, cborOther|eightBytes), math.Float64bits(f))
		}
		return appendHead(dst, h.major, h.arg)
	}
	dst = append(dst, h.major|indefinite)
	for n := uint64(0); r.more(h, n); n++ {
		dst = r.appendOneForm(dst)
		if h.major == cborMap {
			dst = r.appendOneForm(dst)
		}
	}
	return append(dst, cborBreak)
}

func (r *cborReader) appendTagged(dst []byte, tag uint64) []byte {
	if tag != tagBignum && tag != tagNegativeBignum {
		return r.appendOneForm(appendHead(dst, cborTag, tag))
	}
	magnitude, ok := r.bignum()
	if !ok {
		return r.appendOneForm(appendHead(dst, cborTag, tag))
	}
	if len(magnitude) > 8 {
		return appendCBORBytes(appendHead(dst, cborTag, tag), magnitude)
	}
	n := uint64(0)
	for _, b := range magnitude {
		n = n<<8 | uint64(b)
	}
	return appendHead(dst, byte(tag-tagBignum)<<5, n)
}
