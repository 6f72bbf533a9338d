package lane

import "bytes"

// The lane reads the following forms, and nothing else. The names are those of RFC 9112
// with narrower rules.
//
//	request   = ( poll / topics / publish ) CRLF *( field CRLF ) CRLF [ body ]
//	poll      = "GET /v1/sessions/" token "/poll" [ "?" query ] " HTTP/1.1"
//	topics    = "GET /v1/poll?" query " HTTP/1.1"
//	publish   = "POST /v1/topics/" token "/messages" [ "?" query ] " HTTP/1.1"
//	token     = 1*( ALPHA / DIGIT / "-" / "_" / "." )
//	query     = *( visible ASCII, but not "#" )
//	field     = name ":" *SP value *SP       one of the list in fields.go, each at most once
//	value     = *( visible ASCII / SP )
//
// Host is required, with a value that net/http accepts and a name that cors.Hosts allows. A body has exactly Content-Length
// bytes; POST requires it, GET forbids it. Connection may only be keep-alive. The whole
// request fits the buffer. Any other request is not wrong: net/http reads it; see serveForeign.

// A form is the form of a request.
type form uint8

const (
	foreign    form = iota // none of the lane's forms
	unfinished             // the head has a form, and part of the body is missing
	pollForm
	topicsForm
	publishForm
)

// forms are the paths of the forms, before and after a token, and before a query.
var forms = []struct {
	form          form
	begin, middle []byte
}{
	{pollForm, []byte("GET /v1/sessions/"), []byte("/poll")},
	{topicsForm, []byte("GET /v1/poll"), nil}, // without a token, so a query must follow
	{publishForm, []byte("POST /v1/topics/"), []byte("/messages")},
}

// A request is one request of a form. It refers to the bytes that were read.
type parsed struct {
	form   form
	name   []byte // the session's id, or the topic
	query  []byte
	fields *fields
	body   []byte
	length int // of the whole request
}

var (
	version = []byte(" HTTP/1.1")
	lineEnd = []byte("\r\n")
	headEnd = []byte("\r\n\r\n")
)

// read reads the request that b begins with.
func (p *parser) read(b []byte, r *parsed) form {
	line, rest, _ := bytes.Cut(b, lineEnd)
	kind := r.readLine(line)
	if kind == foreign {
		return foreign
	}
	r.form = kind
	end := 0
	if p.last != nil && p.last.names == p.lane.cfg.Hosts.InForce.Load() && bytes.HasPrefix(rest, p.last.block) {
		// Fast path: exactly the fields of the last request, with their empty line.
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

// readLine reads a request line without its end.
func (r *parsed) readLine(line []byte) form {
	line, ok := bytes.CutSuffix(line, version)
	if !ok {
		return foreign
	}
	for _, f := range forms {
		path, ok := bytes.CutPrefix(line, f.begin)
		if !ok {
			continue
		}
		n := 0
		for f.middle != nil && n < len(path) && isToken[path[n]] {
			n++
		}
		r.name = path[:n]
		target, ok := bytes.CutPrefix(path[n:], f.middle)
		var asks bool
		target, r.query, asks = bytes.Cut(target, []byte("?"))
		if !ok || len(target) > 0 || n == 0 && f.middle != nil || !asks && f.middle == nil || !only(r.query, &isQuery) {
			return foreign
		}
		return f.form
	}
	return foreign
}

// A class is a set of bytes.
type class [256]bool

const (
	tokens  = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."
	visible = tokens + "!\"$%&'()*+,/:;<=>?@[\\]^`{|}~" // in ASCII, but not #
)

var (
	isToken = classOf(tokens)
	isQuery = classOf(visible)
	isValue = classOf(visible + "# ")
	isHost  = classOf(tokens + ":[]")
	isDigit = classOf("0123456789")
)

func classOf(members string) (c class) {
	for _, b := range []byte(members) {
		c[b] = true
	}
	return c
}

// only reports whether b has only bytes of a class.
func only[T []byte | string](b T, c *class) bool {
	for i := range len(b) {
		if !c[b[i]] {
			return false
		}
	}
	return true
}
