package client

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
)

// A headCache keeps the last head that was read, as bytes and as what they say.
// Ten thousand answers to one broadcast have the same head.
type headCache struct {
	endless bool // an answer may last as long as its connection, without any framing
	gzip    bool // an answer may be compressed

	raw  []byte
	head Head
}

func (c *headCache) isPrefixOf(b []byte) bool {
	return len(c.raw) > 0 && bytes.HasPrefix(b, c.raw)
}

// parse reads a whole head, empty line included, and remembers it.
func (c *headCache) parse(raw []byte) (Head, error) {
	head, err := parseHead(string(raw), headers{endless: c.endless, gzip: c.gzip})
	if err != nil {
		return Head{}, fmt.Errorf("answer's head %.200q: %w", raw, err)
	}
	c.raw = append(c.raw[:0], raw...)
	c.head = head
	return head, nil
}

// parseHead reads a status line and headers (RFC 9112, sections 4 and 5), each
// ended by CRLF, and the empty line, into h, which says what they may be.
func parseHead(raw string, h headers) (Head, error) {
	lines := strings.Split(strings.TrimSuffix(raw, "\r\n\r\n"), "\r\n")
	status, err := parseStatus(lines[0])
	if err != nil {
		return Head{}, err
	}
	h.status = status
	h.endless = h.endless && status == 200
	for _, line := range lines[1:] {
		if err := h.add(line); err != nil {
			return Head{}, err
		}
	}
	return h.head()
}

// parseStatus reads "HTTP/1.1 200 OK". The phrase may be empty.
func parseStatus(line string) (int, error) {
	rest, ok := strings.CutPrefix(line, "HTTP/1.1 ")
	if !ok || len(rest) < 4 || rest[3] != ' ' || !isFieldText(rest[4:]) {
		return 0, errors.New("is not an HTTP/1.1 status line")
	}
	status, err := decimal(rest[:3])
	if err != nil || status < 200 || status > 599 {
		return 0, fmt.Errorf("has the unexpected status %.3q", rest)
	}
	return int(status), nil
}

// headers gathers what matters of an answer's headers.
type headers struct {
	endless     bool
	gzip        bool
	status      int
	contentType string
	hasType     bool
	length      int64
	hasLength   bool
	chunked     bool
	closes      bool
	compressed  bool

	lastModified, etag string
}

func (h *headers) add(line string) error {
	name, value, ok := strings.Cut(line, ":")
	value = strings.Trim(value, " \t")
	if !ok || !isToken(name) || !isFieldText(value) {
		return fmt.Errorf("header line %.80q is malformed", line)
	}
	switch strings.ToLower(name) {
	case "content-length":
		return h.addLength(value)
	case "transfer-encoding":
		return h.addCoding(value)
	case "content-type":
		return h.addType(value)
	case "content-encoding":
		if !h.gzip || value != "gzip" || h.compressed {
			return fmt.Errorf("unexpected content coding %q: a proxy compresses the answer", value)
		}
		h.compressed = true
	case "last-modified":
		h.lastModified = value
	case "etag":
		h.etag = value
	case "connection":
		return h.addConnection(strings.ToLower(value))
	}
	return nil
}

func (h *headers) addConnection(value string) error {
	switch {
	case value == "close" && h.endless, value == "keep-alive":
	case value == "close" && h.status >= 400:
		h.closes = true
	default:
		return fmt.Errorf("connection: %s; the test needs keep-alive", value)
	}
	return nil
}

func (h *headers) addLength(value string) error {
	n, err := decimal(value)
	if err != nil || h.hasLength {
		return fmt.Errorf("content length %q is repeated or not a number", value)
	}
	h.length, h.hasLength = n, true
	return nil
}

func (h *headers) addCoding(value string) error {
	if h.chunked || !strings.EqualFold(value, "chunked") {
		return fmt.Errorf("transfer coding %q is repeated or not chunked", value)
	}
	h.chunked = true
	return nil
}

func (h *headers) addType(value string) error {
	if h.hasType {
		return errors.New("two content types")
	}
	h.contentType, h.hasType = value, true
	return nil
}

// head decides the framing. RFC 9112, section 6.3: a 204 has no body; a length
// beside a transfer coding "ought to be handled as an error".
func (h *headers) head() (Head, error) {
	switch {
	case h.status == 304:
		return Head{}, errors.New("has status 304, but the test sends no conditional requests")
	case h.status == 204 && (h.hasLength || h.chunked):
		return Head{}, errors.New("has status 204 and a body")
	case h.endless && !h.hasLength && !h.chunked:
		// RFC 9112, section 6.3: "the message body length is determined by the number of
		// octets received prior to the server closing the connection."
		h.length = math.MaxInt64
	case h.status != 204 && h.hasLength == h.chunked:
		return Head{}, errors.New("must have either a content length or chunked coding")
	}
	return Head{
		Status: h.status, ContentType: h.contentType, Chunked: h.chunked, Length: h.length, Closes: h.closes, Gzip: h.compressed,
		LastModified: h.lastModified, ETag: h.etag,
	}, nil
}

// decimal reads 1 to 15 digits.
func decimal(s string) (int64, error) {
	if s == "" || len(s) > 15 {
		return 0, errors.New("is not 1 to 15 digits")
	}
	var n int64
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, errors.New("is not all digits")
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, nil
}

// isToken reports whether s is a header's name (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// isFieldText reports whether s has no control bytes but tabs.
func isFieldText(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
