package lane

import (
	"bytes"
	"hash/maphash"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/pubsubd/pubsubd/internal/app"
)

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

// A parser reads requests of one connection. It remembers the block of fields that
// it read last: a client's polls differ in their first line only.
type parser struct {
	lane *Lane
	last *fields
}

// fieldsOf reads a block of fields with its empty line, or returns nil if it is not
// of our grammar.
func (p *parser) fieldsOf(block []byte) *fields {
	f := p.lane.fields.get(block)
	if f == nil {
		if f = readFields(block); f == nil {
			return nil
		}
		f.accepts = app.AcceptsOf(header(f.accept), header(f.acceptEncoding))
		f.originIndex, f.originAllowed = p.lane.origins.Index(f.origin), p.lane.origins.Allows(f.origin)
		if f.idempotencyKey != "" {
			return f // it is of one message: to remember it would take the place of one that comes again
		}
		p.lane.fields.put(f)
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

// A fieldCache holds blocks of header fields that were read, so that the clients of one
// browser or one proxy share what their requests have in common: five thousand
// connections hold one block, not five thousand. It finds a block by its hash and
// compares every byte, so a collision costs time and never gives a wrong answer. A newer
// block replaces an older one with the same place, so the memory is bounded: 256 places
// times the largest head, 2 MiB.
type fieldCache struct {
	seed   maphash.Seed
	places [256]atomic.Pointer[fields]
}

func newFieldCache() *fieldCache { return &fieldCache{seed: maphash.MakeSeed()} }

func (c *fieldCache) place(block []byte) *atomic.Pointer[fields] {
	return &c.places[maphash.Bytes(c.seed, block)%uint64(len(c.places))]
}

// get returns what was read of the very same block, or nil.
func (c *fieldCache) get(block []byte) *fields {
	if f := c.place(block).Load(); f != nil && bytes.Equal(f.block, block) {
		return f
	}
	return nil
}

func (c *fieldCache) put(f *fields) { c.place(f.block).Store(f) }
