package lane

import (
	"bytes"
	"strings"
)

// The forms that the lane reads, and nothing else (RFC 9112 names, narrowed):
//
//	request   = ( poll / topics / publish ) CRLF *( field CRLF ) CRLF [ body ]
//	poll      = "GET /v1/sessions/" token "/poll" [ "?" query ] " HTTP/1.1"
//	topics    = "GET /v1/poll?" query " HTTP/1.1"
//	publish   = "POST /v1/topics/" token "/messages" [ "?" query ] " HTTP/1.1"
//	token     = 1*( ALPHA / DIGIT / "-" / "_" / "." )
//	query     = *( visible ASCII, but not "#" )
//	field     = name ":" *SP value *SP       one of the list below, each at most once
//	value     = *( visible ASCII / SP )
//
// Host is required, with a value that net/http takes; a body is exactly
// Content-Length bytes, required with POST and forbidden with GET; Connection, if
// there, is keep-alive. The whole request fits the buffer. Whatever is outside is
// not wrong: it is for net/http to read.

// A form is what a request is.
type form uint8

const (
	foreign    form = iota // not one of ours
	unfinished             // its head is ours, its body has yet to come
	pollForm
	topicsForm
	publishForm
)

// A request is one request of our forms. It refers to the bytes that were read.
type request struct {
	name   []byte // the session's id, or the topic
	query  []byte
	fields *fields
	body   []byte
	length int // of the whole request
}

var (
	pollBegin, pollMiddle       = []byte("GET /v1/sessions/"), []byte("/poll")
	topicsBegin                 = []byte("GET /v1/poll?")
	publishBegin, publishMiddle = []byte("POST /v1/topics/"), []byte("/messages")
	version                     = []byte(" HTTP/1.1\r\n")
	headEnd                     = []byte("\r\n\r\n")
)

// read reads the request that b begins with.
func (p *parser) read(b []byte, r *request) form {
	kind, rest := foreign, b
	switch {
	case bytes.HasPrefix(b, pollBegin):
		kind = r.readLine(b[len(pollBegin):], pollMiddle, &rest, pollForm)
	case bytes.HasPrefix(b, topicsBegin):
		kind = r.readQuery(b[len(topicsBegin):], &rest)
	case bytes.HasPrefix(b, publishBegin):
		kind = r.readLine(b[len(publishBegin):], publishMiddle, &rest, publishForm)
	}
	if kind == foreign {
		return foreign
	}
	end := 0
	if p.last != nil && bytes.HasPrefix(rest, p.last.block) {
		// Fast path: the very fields that were read before, to their empty line.
		end, r.fields = len(p.last.block), p.last
	} else if end = bytes.Index(rest, headEnd) + len(headEnd); end < len(headEnd) {
		return foreign
	} else if r.fields = p.fieldsOf(rest[:end]); r.fields == nil {
		return foreign
	}
	length := r.fields.contentLength
	if (kind == publishForm) != (length >= 0) {
		return foreign
	}
	length = max(length, 0)
	r.length = len(b) - len(rest) + end + length
	if len(rest) < end+length {
		return unfinished
	}
	r.body = rest[end : end+length]
	return kind
}

// readLine reads what follows the begin of a request line with a name in it, and
// leaves rest after it.
func (r *request) readLine(b, middle []byte, rest *[]byte, kind form) form {
	target, ok := readTarget(b, rest)
	if !ok {
		return foreign
	}
	n := 0
	for n < len(target) && isToken[target[n]] {
		n++
	}
	r.name, target = target[:n], target[n:]
	if n == 0 || !bytes.HasPrefix(target, middle) {
		return foreign
	}
	target = target[len(middle):]
	r.query = nil
	if len(target) == 0 {
		return kind
	}
	if target[0] != '?' || !only(target[1:], &isQuery) {
		return foreign
	}
	r.query = target[1:]
	return kind
}

// readQuery reads what follows the begin of a request line that ends in a query.
func (r *request) readQuery(b []byte, rest *[]byte) form {
	var ok bool
	if r.query, ok = readTarget(b, rest); !ok || !only(r.query, &isQuery) {
		return foreign
	}
	return topicsForm
}

// readTarget returns what stands before the version, and leaves rest after the line.
func readTarget(b []byte, rest *[]byte) ([]byte, bool) {
	end := bytes.IndexByte(b, '\r')
	if end < 0 || !bytes.HasPrefix(b[end:], version[len(version)-2:]) {
		return nil, false
	}
	*rest = b[end+2:]
	return bytes.CutSuffix(b[:end], version[:len(version)-2])
}

// A class is a set of bytes.
type class [256]bool

var (
	isToken = classOf("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
	isQuery = visibleWithout("#")
	isValue = with(visibleWithout(""), ' ')
	isHost  = classOf("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:[]")
)

func classOf(members string) (c class) {
	for _, b := range []byte(members) {
		c[b] = true
	}
	return c
}

func visibleWithout(others string) (c class) {
	for b := byte('!'); b <= '~'; b++ {
		c[b] = !strings.Contains(others, string(rune(b)))
	}
	return c
}

func with(c class, b byte) class {
	c[b] = true
	return c
}

func only(b []byte, c *class) bool {
	for _, x := range b {
		if !c[x] {
			return false
		}
	}
	return true
}
