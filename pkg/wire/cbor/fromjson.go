package cbor

import (
	"bytes"
	"errors"
	"math/big"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendFromJSON appends the JSON value of text, which must be valid, as one CBOR item.
// Maps keep their order, lengths are definite, heads the shortest. If the item would lose
// something, it is tag 262 on a byte string, which is text itself. CBOR loses half a
// surrogate pair and a field that comes twice. It also loses most numbers that are not the
// shortest decimal of a float64; integers of up to 400 bytes are kept.
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

// A writer reads text and writes CBOR to dst. Its methods return false if the text is not
// valid, or CBOR would lose something; dst is useless then.
type writer struct {
	text []byte
	at   int
	dst  []byte
	keys mapKeys // in CBOR
}

var writers = sync.Pool{New: func() any { return new(writer) }}

// next skips white space and returns the next byte, or 0 at the end.
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
	switch c.next() {
	case '"':
		return c.string()
	case '{':
		return depth < MaxDepth && c.elements(Map, '}', depth+1)
	case '[':
		return depth < MaxDepth && c.elements(Array, ']', depth+1)
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

// elements reads an array or an object, from its opening to its closing bracket.
func (c *writer) elements(major, bracket byte, depth int) bool {
	head, keys, n := len(c.dst), len(c.keys), uint64(0)
	c.dst = append(c.dst, major) // CloseHead replaces it
	c.at++
	for more := c.next() != bracket; more; n++ {
		if major == Map && !c.key() || !c.value(depth) {
			return false
		}
		switch c.next() {
		case ',':
			c.at++
		case bracket:
			more = false
		default:
			return false
		}
	}
	c.at++
	if !c.keys.close(keys) { // before CloseHead moves them
		return false
	}
	c.dst = CloseHead(c.dst, head, major, n)
	return true
}

// key reads the name of a field and its colon.
func (c *writer) key() bool {
	from := len(c.dst)
	if c.next() != '"' || !c.string() || c.next() != ':' {
		return false
	}
	c.at++
	c.keys = append(c.keys, c.dst[from:]) // it does not move before the object is closed
	return true
}

func (c *writer) string() bool {
	text := c.text[c.at:]
	end, escaped := 1, false
	for {
		special := bytes.IndexAny(text[end:], `"\`)
		if special < 0 {
			return false
		}
		end += special + 1
		if text[end-1] == '"' {
			break
		}
		escaped = true
		end = min(end+1, len(text)) // the escaped byte
	}
	c.at += end
	if !escaped {
		c.dst = AppendText(c.dst, text[1:end-1])
		return true
	}
	var err error
	head := len(c.dst)
	c.dst, err = jsontext.AppendUnquote(append(c.dst, Text), text[:end])
	c.dst = CloseHead(c.dst, head, Text, uint64(len(c.dst)-head-1))
	return err == nil
}

func (c *writer) number() bool {
	from := c.at
	for c.at < len(c.text) && strings.IndexByte("0123456789+-.eE", c.text[c.at]) >= 0 {
		c.at++
	}
	number := c.text[from:c.at]
	if bytes.ContainsAny(number, ".eE+") || string(number) == "-0" {
		f, err := strconv.ParseFloat(string(number), 64)
		c.dst = appendFloat(c.dst, f)
		return err == nil && isShortest(number, f)
	}
	return c.integer(number)
}

func (c *writer) integer(number []byte) bool {
	digits, major, tag := number, byte(Uint), uint64(tagBignum)
	if bytes.HasPrefix(number, []byte{'-'}) {
		digits, major, tag = number[1:], Negative, tagNegativeBignum
	}
	n, err := strconv.ParseUint(string(digits), 10, 64)
	if err == nil {
		if major == Negative {
			n-- // it is not 0
		}
		c.dst = AppendHead(c.dst, major, n)
		return true
	}
	if len(digits) > maxIntegerDigits || !errors.Is(err, strconv.ErrRange) {
		return false
	}
	large, ok := new(big.Int).SetString(string(digits), 10)
	if !ok {
		return false
	}
	if major == Negative {
		large.Sub(large, big.NewInt(1))
	}
	if large.IsUint64() { // 18446744073709551615, from -18446744073709551616
		c.dst = AppendHead(c.dst, major, large.Uint64())
		return true
	}
	c.dst = AppendBytes(AppendHead(c.dst, Tag, tag), large.Bytes())
	return large.BitLen() <= 8*maxBignumBytes
}
