package client

import (
	"bytes"
	"errors"
	"fmt"
)

// A Head is what an answer's status line and headers say.
type Head struct {
	Status      int
	ContentType string
	Chunked     bool
	Length      int64 // of the body; without meaning if Chunked
	Closes      bool  // the connection ends after this answer, which is a refusal
	Gzip        bool  // the body is compressed; only of a NewParser that takes such

	LastModified, ETag string // empty if there are none
}

// A Receiver is told what a Parser reads, in order: one Head, any number of
// Body, one End for each answer. An error stops the Parser for good.
type Receiver interface {
	Head(h Head) error
	Body(part []byte) error // never empty; only valid until it returns
	End() error
}

// Bounds of what a Parser takes.
const (
	maxHeadBytes      = 32 << 10
	maxChunkLineBytes = 18 // sixteen hex digits and CRLF
)

// A Parser reads HTTP/1.1 answers from bytes in pieces of any size.
//
// It takes answers with one Content-Length or with plain chunked coding, and
// 204; "Connection: close" with refusals alone, such as those of a server that
// drains. Everything else is an error: answers that nothing asked for, interim
// answers, folded or malformed header lines, a doubled or contradictory
// framing, chunk extensions, trailers, content codings that were not asked for,
// and "Connection: close" where all is well, since the test needs the connection.
type Parser struct {
	heads    *headCache
	expected int // answers asked for and not ended

	state parserState
	carry []byte // the beginning of a head or chunk line whose end has not come
	left  int64  // of the body or chunk that is being read
}

type parserState uint8

const (
	inHead parserState = iota
	inBody
	inChunkLine
	inChunk
	inChunkEnd
	inLastLine
)

// NewParser returns a Parser for one connection. With gzip it takes compressed
// answers, too, whose Body is as it came.
func NewParser(gzip bool) *Parser { return &Parser{heads: &headCache{gzip: gzip}} }

// Expect tells the parser that one more request is on its way.
func (p *Parser) Expect() { p.expected++ }

// Feed reads b, which follows all that was fed before.
func (p *Parser) Feed(b []byte, r Receiver) error {
	for len(b) > 0 {
		n, err := p.step(b, r)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (p *Parser) step(b []byte, r Receiver) (int, error) {
	switch p.state {
	case inHead:
		return p.readHead(b, r)
	case inBody:
		return p.readBody(b, r)
	case inChunk:
		return p.readChunk(b, r)
	default:
		return p.readLine(b, r)
	}
}

// readHead takes bytes up to the empty line that ends the head.
func (p *Parser) readHead(b []byte, r Receiver) (int, error) {
	if p.expected == 0 {
		return 0, fmt.Errorf("unexpected bytes: %.80q", b)
	}
	// Fast path: the very bytes of the last head. They end in its empty line, so
	// the head ends there too.
	if len(p.carry) == 0 && p.heads.isPrefixOf(b) {
		return len(p.heads.raw), p.begin(p.heads.head, r)
	}
	raw, n, err := p.until(b, "\r\n\r\n", maxHeadBytes)
	if err != nil || raw == nil {
		return n, err
	}
	head, err := p.heads.parse(raw)
	if err != nil {
		return 0, err
	}
	p.carry = p.carry[:0]
	return n, p.begin(head, r)
}

// until returns the carried bytes and those of b up to and including end, and
// how many of b that takes; without end, nil, and all of b is carried on.
func (p *Parser) until(b []byte, end string, limit int) (found []byte, n int, err error) {
	overlap := max(len(p.carry)-len(end)+1, 0)
	carried := len(p.carry)
	window := b[:min(len(b), limit+1)]
	if carried > 0 {
		p.carry = append(p.carry, window...)
		window = p.carry
	}
	i := bytes.Index(window[overlap:], []byte(end))
	if i >= 0 && overlap+i+len(end) <= limit {
		whole := overlap + i + len(end)
		return window[:whole], whole - carried, nil
	}
	if len(window) > limit {
		return nil, 0, fmt.Errorf("no end within %d bytes of %.80q", limit, window)
	}
	if carried == 0 {
		p.carry = append(p.carry, b...)
	}
	return nil, len(b), nil
}

func (p *Parser) begin(head Head, r Receiver) error {
	if err := r.Head(head); err != nil {
		return err
	}
	switch {
	case head.Chunked:
		p.state = inChunkLine
	case head.Length > 0:
		p.state, p.left = inBody, head.Length
	default:
		return p.end(r)
	}
	return nil
}

func (p *Parser) end(r Receiver) error {
	p.state = inHead
	p.expected--
	return r.End()
}

func (p *Parser) readBody(b []byte, r Receiver) (int, error) {
	n, err := p.pass(b, r)
	if err == nil && p.left == 0 {
		err = p.end(r)
	}
	return n, err
}

func (p *Parser) readChunk(b []byte, r Receiver) (int, error) {
	n, err := p.pass(b, r)
	if p.left == 0 {
		p.state = inChunkEnd
	}
	return n, err
}

// pass hands on what is there of the body or chunk.
func (p *Parser) pass(b []byte, r Receiver) (int, error) {
	n := int(min(p.left, int64(len(b))))
	p.left -= int64(n)
	return n, r.Body(b[:n])
}

// readLine takes one of the lines of chunked coding.
func (p *Parser) readLine(b []byte, r Receiver) (int, error) {
	line, n, err := p.until(b, "\r\n", maxChunkLineBytes)
	if err != nil || line == nil {
		return n, err
	}
	line = line[:len(line)-len("\r\n")]
	p.carry = p.carry[:0]
	return n, p.line(line, r)
}

func (p *Parser) line(line []byte, r Receiver) error {
	switch p.state {
	case inChunkLine:
		return p.chunkLine(line)
	case inChunkEnd:
		p.state = inChunkLine
		return wantEmpty(line, "after a chunk's data")
	case inLastLine:
		if err := wantEmpty(line, "after the last chunk"); err != nil {
			return err
		}
		return p.end(r)
	}
	panic("BUG: a line in a state without lines")
}

func wantEmpty(line []byte, where string) error {
	if len(line) != 0 {
		return fmt.Errorf("%.80q %s", line, where)
	}
	return nil
}

// chunkLine reads a chunk's size: hex digits and nothing else.
func (p *Parser) chunkLine(line []byte) error {
	size, err := hex(line)
	if err != nil {
		return err
	}
	p.left = size
	p.state = inChunk
	if size == 0 {
		p.state = inLastLine
	}
	return nil
}

var errChunkSize = errors.New("chunk size is not 1 to 15 hex digits")

func hex(digits []byte) (int64, error) {
	if len(digits) == 0 || len(digits) > 15 {
		return 0, fmt.Errorf("%w: %.80q", errChunkSize, digits)
	}
	var n int64
	for _, c := range digits {
		d := hexDigit(c)
		if d < 0 {
			return 0, fmt.Errorf("%w: %.80q", errChunkSize, digits)
		}
		n = n<<4 | int64(d)
	}
	return n, nil
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
