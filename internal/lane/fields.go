package lane

import (
	"bytes"
	"hash/maphash"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/request"
)

// fields has the values of a block of header fields. It is immutable.
type fields struct {
	block []byte // the bytes from after the request line to the end of the empty line

	host, contentType, authorization  string
	agent                             string
	forwardedFor                      [1]string // a list as net/http has it, like the next two; empty means as much as none
	accept, acceptEncoding            [1]string
	origin, fetchSite, idempotencyKey string
	requestID                         string
	traceparent, tracestate           string
	contentLength                     int // -1: none
	accepts                           request.Accepts
	originIndex                       int         // see cors.Policy
	isAllowed                         bool        // cors.Policy's CheckPage passes these fields
	names                             *cors.Names // in force when they allowed the host
}

// A parser reads the requests of one connection. It remembers the last block of fields,
// because a client's polls differ only in their first line. A reload of hosts makes it read
// the block again.
type parser struct {
	lane *Lane
	last *fields
}

// fieldsOf reads a block of fields with its empty line. It returns nil if the grammar, or
// the list of hosts, does not allow it.
func (p *parser) fieldsOf(block []byte) *fields {
	slot, names := p.lane.fields.slot(block), p.lane.cfg.Hosts.InForce.Load()
	f := slot.Load()
	if f == nil || f.names != names || !bytes.Equal(f.block, block) {
		if f = readFields(block); f == nil || !names.Allow(f.host) {
			return nil
		}
		f.names = names
		f.accepts = request.AcceptsOf(f.accept[:], f.acceptEncoding[:])
		f.originIndex, f.isAllowed = p.lane.cfg.Origins.Index(f.origin), f.pass(p.lane.cfg.Origins)
		if f.idempotencyKey != "" || f.requestID != "" || f.traceparent != "" {
			return f // it belongs to one request: in the cache it would replace a block that comes again
		}
		slot.Store(f)
	}
	p.last = f
	return f
}

// readFields reads a block of fields, or returns nil if the grammar does not allow it.
func readFields(block []byte) *fields {
	f := &fields{contentLength: -1}
	had := make([]string, 0, 32) // the names of the fields that were read
	for lines := block[:len(block)-len(lineEnd)]; len(lines) > 0; {
		line, rest, isLine := bytes.Cut(lines, lineEnd)
		before, after, isField := bytes.Cut(line, []byte(":"))
		if !isLine || !isField || !only(before, &isToken) || !only(after, &isValue) {
			return nil
		}
		name := strings.ToLower(string(before))
		take := known[name]
		if take == nil || slices.Contains(had, name) || !take(f, strings.Trim(string(after), " ")) {
			return nil
		}
		had, lines = append(had, name), rest
	}
	if f.host == "" {
		return nil
	}
	f.block = bytes.Clone(block)
	return f
}

// known are the fields that browsers, Go, Node, curl and proxies send with a poll or a
// publish. Any other field could change what net/http does. Each function stores the value,
// or returns false if the grammar does not allow it.
var known = map[string]func(f *fields, value string) bool{
	"host":       func(f *fields, v string) bool { f.host = v; return v != "" && only(v, &isHost) },
	"connection": func(_ *fields, v string) bool { return strings.EqualFold(v, "keep-alive") },
	"content-length": func(f *fields, v string) bool {
		f.contentLength, _ = strconv.Atoi(v)
		return v != "" && len(v) <= 5 && only(v, &isDigit) // a longer body does not fit the buffer
	},
	"content-type":    func(f *fields, v string) bool { f.contentType = v; return true },
	"accept":          func(f *fields, v string) bool { f.accept[0] = v; return true },
	"accept-encoding": func(f *fields, v string) bool { f.acceptEncoding[0] = v; return true },
	"authorization":   func(f *fields, v string) bool { f.authorization = v; return true },
	"origin":          func(f *fields, v string) bool { f.origin = v; return true },
	"sec-fetch-site":  func(f *fields, v string) bool { f.fetchSite = v; return true },
	"idempotency-key": func(f *fields, v string) bool { f.idempotencyKey = v; return v != "" },
	"x-forwarded-for": func(f *fields, v string) bool { f.forwardedFor[0] = v; return true },
	"user-agent":      func(f *fields, v string) bool { f.agent = v; return true },
	"x-request-id":    func(f *fields, v string) bool { f.requestID = observe.RequestID(v); return true },
	"traceparent":     func(f *fields, v string) bool { f.traceparent = v; return true },
	"tracestate":      func(f *fields, v string) bool { f.tracestate = v; return true },
}

func init() {
	for _, name := range withoutEffect {
		known[name] = func(*fields, string) bool { return true }
	}
}

// withoutEffect are the known fields that change nothing.
var withoutEffect = []string{
	"accept-language", "referer", "cookie", "cache-control", "pragma", "priority", "dnt", "sec-gpc",
	"sec-fetch-mode", "sec-fetch-dest", "sec-fetch-user", "sec-fetch-storage-access",
	"sec-ch-ua", "sec-ch-ua-mobile", "sec-ch-ua-platform", "x-requested-with",
	"x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-forwarded-server", "x-real-ip",
	"forwarded", "via",
}

// pass reports whether a policy allows a page to make topics with these fields, by a publish
// or a poll.
func (f *fields) pass(origins *cors.Policy) bool {
	if f.origin == "" && f.fetchSite == "" {
		return true // no browser sent them
	}
	return origins.Check(&http.Request{
		Method: http.MethodPost, Host: f.host,
		Header: http.Header{"Origin": {f.origin}, "Sec-Fetch-Site": {f.fetchSite}},
	}) == nil
}

// A fieldCache holds blocks of header fields, so that clients with the same browser or
// proxy share them: five thousand connections hold one block, not five thousand. It finds
// a block by its hash and compares every byte, so a collision costs time and never gives a
// wrong answer. A new block replaces an old one in the same slot. So the memory is bounded:
// 256 slots times the largest head, 2 MiB.
type fieldCache struct {
	seed  maphash.Seed
	slots [256]atomic.Pointer[fields]
}

func newFieldCache() *fieldCache { return &fieldCache{seed: maphash.MakeSeed()} }

func (c *fieldCache) slot(block []byte) *atomic.Pointer[fields] {
	return &c.slots[maphash.Bytes(c.seed, block)%uint64(len(c.slots))]
}
