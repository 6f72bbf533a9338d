package lane

import (
	"bytes"
	"net/url"
	"strings"

	"github.com/pubsubd/pubsubd/internal/app"
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

// fields are what matters in a block of header fields. Immutable.
type fields struct {
	block []byte // as it came, from after the request line to its empty line

	host, contentType, authorization  string
	forwardedFor                      string
	accept, acceptEncoding            string
	origin, fetchSite, idempotencyKey string
	contentLength                     int // -1: none
	accepts                           app.Accepts
	originIndex                       int // see cors.Policy
	originAllowed                     bool
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

// A parser reads requests of one connection. It remembers the block of fields that
// it read last: a client's polls differ in their first line only.
type parser struct {
	lane *Lane
	last *fields
}

// fieldsOf reads a block of fields with its empty line, or returns nil if it is not
// of our grammar.
func (p *parser) fieldsOf(block []byte) *fields {
	f := p.lane.seen.get(block)
	if f == nil {
		if f = readFields(block); f == nil {
			return nil
		}
		f.accepts = app.AcceptsOf(header(f.accept), header(f.acceptEncoding))
		f.originIndex, f.originAllowed = p.lane.origins.Index(f.origin), p.lane.origins.Allows(f.origin)
		if f.idempotencyKey != "" {
			return f // it is of one message: to remember it would take the place of one that comes again
		}
		p.lane.seen.put(f)
	}
	p.last = f
	return f
}

// readFields reads a block of fields, or returns nil if it is not of our grammar.
func readFields(block []byte) *fields {
	f := &fields{contentLength: -1}
	var had uint64 // bit i: the i-th of known
	lines := block[:len(block)-2]
	for len(lines) > 0 {
		end := bytes.IndexByte(lines, '\r')
		if end < 0 || end+1 == len(lines) || lines[end+1] != '\n' {
			return nil
		}
		i, value, ok := readField(lines[:end])
		if !ok || had&(1<<i) != 0 {
			return nil
		}
		had |= 1 << i
		if take := known[i].take; take != nil && !take(f, value) {
			return nil
		}
		lines = lines[end+2:]
	}
	if f.host == "" {
		return nil
	}
	f.block = bytes.Clone(block)
	return f
}

// readField returns which field a line is and its value.
func readField(line []byte) (index int, value string, ok bool) {
	colon := bytes.IndexByte(line, ':')
	if colon < 0 || !only(line[:colon], &isToken) || !only(line[colon+1:], &isValue) {
		return 0, "", false
	}
	index, ok = indexOf[strings.ToLower(string(line[:colon]))]
	return index, strings.Trim(string(line[colon+1:]), " "), ok
}

// A field is one that the lane knows. take is what its value has to do with the
// answer; without it the field changes nothing.
type field struct {
	name string
	take func(f *fields, value string) bool
}

// known are the fields that browsers, Go, Node, curl and proxies send with a poll
// or a publish. Any other could change what net/http does.
var known = []field{
	{"host", (*fields).takeHost},
	{"connection", func(_ *fields, v string) bool { return strings.EqualFold(v, "keep-alive") }},
	{"content-length", (*fields).takeContentLength},
	{"content-type", func(f *fields, v string) bool { f.contentType = v; return true }},
	{"accept", func(f *fields, v string) bool { f.accept = v; return true }},
	{"accept-encoding", func(f *fields, v string) bool { f.acceptEncoding = v; return true }},
	{"authorization", func(f *fields, v string) bool { f.authorization = v; return true }},
	{"origin", func(f *fields, v string) bool { f.origin = v; return true }},
	{"sec-fetch-site", func(f *fields, v string) bool { f.fetchSite = v; return true }},
	{"idempotency-key", func(f *fields, v string) bool { f.idempotencyKey = v; return v != "" }},
	{name: "user-agent"},
	{name: "accept-language"},
	{name: "referer"},
	{name: "cookie"},
	{name: "cache-control"},
	{name: "pragma"},
	{name: "priority"},
	{name: "dnt"},
	{name: "sec-gpc"},
	{name: "sec-fetch-mode"},
	{name: "sec-fetch-dest"},
	{name: "sec-fetch-user"},
	{name: "sec-fetch-storage-access"},
	{name: "sec-ch-ua"},
	{name: "sec-ch-ua-mobile"},
	{name: "sec-ch-ua-platform"},
	{name: "x-requested-with"},
	{"x-forwarded-for", func(f *fields, v string) bool { f.forwardedFor = v; return true }},
	{name: "x-forwarded-host"},
	{name: "x-forwarded-port"},
	{name: "x-forwarded-proto"},
	{name: "x-forwarded-server"},
	{name: "x-real-ip"},
	{name: "x-request-id"},
	{name: "forwarded"},
	{name: "via"},
	{name: "traceparent"},
	{name: "tracestate"},
}

var indexOf = func() map[string]int {
	m := make(map[string]int, len(known))
	for i, f := range known {
		m[f.name] = i
	}
	return m
}()

func (f *fields) takeHost(v string) bool {
	f.host = v
	return v != "" && only([]byte(v), &isHost)
}

// takeContentLength takes digits: what is longer does not fit the buffer anyway.
func (f *fields) takeContentLength(v string) bool {
	if len(v) == 0 || len(v) > 5 {
		return false
	}
	n := 0
	for _, c := range []byte(v) {
		if c < '0' || c > '9' {
			return false
		}
		n = n*10 + int(c-'0')
	}
	f.contentLength = n
	return true
}

// passes reports whether cors.Policy's Check is sure to let a publish with these
// fields pass.
func (f *fields) passes() bool {
	if f.originAllowed {
		return true
	}
	switch f.fetchSite {
	case "same-origin", "none":
		return true
	case "":
		if f.origin == "" {
			return true
		}
		u, err := url.Parse(f.origin)
		return err == nil && u.Host == f.host
	}
	return false
}
