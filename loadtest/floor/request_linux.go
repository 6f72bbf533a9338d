package floor

import (
	"bytes"
	"strconv"
)

// requested is the way of all requests but a known poller's.
func (s *Server) requested(fd int, c *conn, b []byte) {
	if len(c.carry) > 0 {
		c.carry = append(c.carry, b...)
		b = c.carry
	}
	for len(b) > 0 && s.conns[fd].kind != closed {
		r, n := parse(b)
		switch {
		case n < 0 || n > 0 && !s.serve(fd, c, r):
			s.end(fd)
			return
		case n == 0:
			c.carry = append(c.carry[:0], b...)
			return
		}
		b = b[n:]
	}
	c.carry = c.carry[:0]
}

// serve does what a request asks for, and reports whether it could.
func (s *Server) serve(fd int, c *conn, r request) bool {
	switch {
	case bytes.HasPrefix(r.head, []byte("POST /pub?t=")):
		c.kind = publisher
		s.publish(s.topic(r.topic), r.body)
		s.write(fd, taken)
	case c.kind != newcomer:
		return false
	case bytes.HasPrefix(r.head, []byte("GET /poll?t=")):
		s.join(fd, c, poller, r.topic)
		c.parked = true
	case bytes.HasPrefix(r.head, []byte("GET /stream?t=")):
		s.join(fd, c, stream, r.topic)
		s.write(fd, streamHead)
	default:
		return false
	}
	return true
}

func (s *Server) topic(name []byte) *topic {
	t := s.topics[string(name)]
	if t == nil {
		t = &topic{}
		s.topics[string(name)] = t
	}
	return t
}

func (s *Server) join(fd int, c *conn, k kind, name []byte) {
	t := s.topic(name)
	c.kind, c.topic, c.seq, c.slot = k, t, t.seq, int32(len(t.members))
	t.members = append(t.members, int32(fd))
}

// A request is as much of one as is looked at.
type request struct{ head, topic, body []byte }

// maxBody bounds a message.
const maxBody = readBuffer / 2

// parse returns the first request of b and its length: 0 if it is not all there,
// -1 if it is none.
func parse(b []byte) (request, int) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) > readBuffer {
			return request{}, -1
		}
		return request{}, 0
	}
	r := request{head: b[:end+2]}
	_, after, ok := bytes.Cut(r.head, []byte("?t="))
	name := bytes.IndexAny(after, " &\r")
	if !ok || name <= 0 {
		return request{}, -1
	}
	r.topic = after[:name]
	length, ok := contentLength(r.head)
	if !ok {
		return request{}, -1
	}
	whole := end + 4 + length
	if whole > len(b) {
		return request{}, 0
	}
	r.body = b[end+4 : whole]
	return r, whole
}

// contentLength returns the body's length, 0 if nothing is said of it.
func contentLength(head []byte) (int, bool) {
	const name = "content-length:"
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			n, err := strconv.Atoi(string(bytes.TrimSpace(line[len(name):])))
			return n, err == nil && n >= 0 && n <= maxBody
		}
	}
	return 0, true
}

func appendAnswer(b, body []byte) []byte {
	b = append(b, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	return append(b, body...)
}

func appendChunk(b, body []byte) []byte {
	b = strconv.AppendInt(b, int64(len(body)+1), 16)
	b = append(b, "\r\n"...)
	b = append(b, body...)
	return append(b, "\n\r\n"...)
}
