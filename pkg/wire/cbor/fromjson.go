package cbor

import (
	"bytes"
	"math"
	"math/big"
	"strconv"
	"sync"
)

// AppendFromJSON appends the JSON value of text, which is valid, as one CBOR
// item. Maps keep their order, lengths are definite, heads the shortest. If not all
// of it would survive (a number that is no integer of up to 400 bytes and no
// shortest decimal of a float64, half a surrogate pair, a key that comes twice), the
// item is tag 262 on a byte string: text itself.
func AppendFromJSON(dst, text []byte) []byte {
	c := writers.Get().(*writer)
	c.text, c.at, c.dst = text, 0, dst
	ok := c.value(0) && c.next() == 0
	out := c.dst
	c.text, c.dst, c.keys = nil, nil, c.keys.emptied()
	writers.Put(c)
	if !ok {
		return AppendBytes(AppendHead(out[:len(dst)], Tag, tagJSON), text)
	}
	return out
}

// A writer writes what it reads of text to dst. Its methods report whether
// that went well.
type writer struct {
	text []byte
	at   int
	dst  []byte
	keys mapKeys // in CBOR
}

var writers = sync.Pool{New: func() any { return new(writer) }}

// next returns the byte that something begins with, or 0 at the end.
func (c *writer) next() byte {
	for c.at < len(c.text) {
		switch b := c.text[c.at]; b {
		case ' ', '\t', '\r', '\n':
			c.at++
		default:
			return b
		}
	}
	return 0
}

func (c *writer) value(depth int) bool {
	switch b := c.next(); b {
	case '"':
		return c.string()
	case '{':
		return depth < MaxDepth && c.object(depth+1)
	case '[':
		return depth < MaxDepth && c.array(depth+1)
	case 't':
		return c.word("true", valueTrue)
	case 'f':
		return c.word("false", valueFalse)
	case 'n':
		return c.word("null", Null)
	}
	return c.number()
}

func (c *writer) word(word string, item byte) bool {
	if !bytes.HasPrefix(c.text[c.at:], []byte(word)) {
		return false
	}
	c.at += len(word)
	c.dst = append(c.dst, item)
	return true
}

func (c *writer) array(depth int) bool {
	head := c.open(Array)
	n, ok := c.elements(']', func() bool { return c.value(depth) })
	c.dst = CloseHead(c.dst, head, Array, n)
	return ok
}

func (c *writer) object(depth int) bool {
	head, mine := c.open(Map), len(c.keys)
	n, ok := c.elements('}', func() bool { return c.member(depth) })
	ok = c.keys.shut(mine) && ok // before they move
	c.dst = CloseHead(c.dst, head, Map, n)
	return ok
}

// open leaves one byte for a head, and returns where it is.
func (c *writer) open(major byte) (head int) {
	c.dst = append(c.dst, major)
	return len(c.dst) - 1
}

func (c *writer) member(depth int) bool {
	from := len(c.dst)
	if c.next() != '"' || !c.string() {
		return false
	}
	c.keys = append(c.keys, c.dst[from:]) // it stays where it is until the object is shut
	if c.next() != ':' {
		return false
	}
	c.at++
	return c.value(depth)
}

// elements reads what stands between brackets and commas, and counts it.
func (c *writer) elements(shut byte, element func() bool) (n uint64, ok bool) {
	c.at++
	for c.next() != shut || n > 0 {
		if !element() {
			return n, false
		}
		n++
		b := c.next()
		c.at++
		if b == shut || b != ',' {
			return n, b == shut
		}
	}
	c.at++
	return n, true
}

func (c *writer) string() bool {
	rest := c.text[c.at+1:]
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return false
	}
	if s := rest[:end]; bytes.IndexByte(s, '\\') < 0 {
		c.dst = AppendText(c.dst, s)
		c.at += end + 2
		return true
	}
	head := len(c.dst)
	text, n, ok := appendUnescaped(append(c.dst, Text), rest)
	c.dst = CloseHead(text, head, Text, uint64(len(text)-head-1))
	c.at += n + 1
	return ok
}

func (c *writer) number() bool {
	from, whole := c.at, true
	for ; c.at < len(c.text); c.at++ {
		switch b := c.text[c.at]; {
		case b >= '0' && b <= '9' || b == '-':
		case b == '.' || b|0x20 == 'e' || b == '+':
			whole = false
		default:
			return c.numeral(c.text[from:c.at], whole)
		}
	}
	return c.numeral(c.text[from:], whole)
}

func (c *writer) numeral(number []byte, whole bool) bool {
	switch {
	case len(number) == 0:
		return false
	case whole && string(number) != "-0":
		return c.integer(number)
	}
	return c.float(number)
}

// uint64Digits is how many digits surely fit a uint64.
const uint64Digits = 19

func (c *writer) integer(number []byte) bool {
	digits, major := number, byte(Uint)
	if number[0] == '-' {
		digits, major = number[1:], Negative
	}
	if len(digits) == 0 || len(digits) > uint64Digits {
		return c.bignum(digits, major)
	}
	n := uint64(0)
	for _, b := range digits {
		if b == '-' {
			return false
		}
		n = n*10 + uint64(b-'0')
	}
	if major == Negative {
		n-- // it is not 0
	}
	c.dst = AppendHead(c.dst, major, n)
	return true
}

func (c *writer) bignum(digits []byte, major byte) bool {
	if len(digits) > maxIntegerDigits {
		return false
	}
	n, ok := new(big.Int).SetString(string(digits), 10)
	if !ok {
		return false
	}
	tag := uint64(tagBignum)
	if major == Negative {
		n.Sub(n, big.NewInt(1))
		tag = tagNegativeBignum
	}
	if n.IsUint64() {
		c.dst = AppendHead(c.dst, major, n.Uint64())
		return true
	}
	magnitude := n.Bytes()
	c.dst = AppendBytes(AppendHead(c.dst, Tag, tag), magnitude)
	return len(magnitude) <= maxBignumBytes
}

func (c *writer) float(number []byte) bool {
	d, ok := decimalOf(number)
	if !ok {
		return false
	}
	f, err := strconv.ParseFloat(string(number), 64)
	if err != nil || math.IsInf(f, 0) || !d.isShortestOf(f) {
		return false
	}
	c.dst = appendFloat(c.dst, f)
	return true
}
