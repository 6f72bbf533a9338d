package transport

import (
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A sequence reads the commands on a TCP connection. Each command is one item of a CBOR
// sequence (RFC 8742). A sequence only finds where items end. null is a heartbeat.
type sequence struct {
	most int    // the longest command, in bytes
	item []byte // the part of an unfinished item that was read
	scan cbor.Scan
}

// Partial implements reader.
func (s *sequence) Partial() bool { return len(s.item) > 0 }

// Held implements reader.
func (s *sequence) Held() int { return len(s.item) }

// Read implements reader.
func (s *sequence) Read(b []byte) (n int, in incoming, err error) {
	for len(s.item) == 0 && n < len(b) && b[n] == cbor.Null { // no rate limits heartbeats, so they cost no more than reading
		n++
	}
	if n > 0 {
		return n, incoming{}, nil
	}
	had := len(s.item)
	all := b
	if had > 0 {
		s.item = append(s.item, b...)
		all = s.item
	}
	length, err := s.scan.Next(all)
	switch {
	case err != nil:
		return 0, incoming{}, problem.New(wire.CodeInvalidRequest, "send a CBOR sequence (RFC 8742)", "the bytes cannot be read as CBOR: %v", err)
	case len(all) > s.most && (length == 0 || length > s.most):
		return 0, incoming{}, commandTooLarge(s.most)
	case length == 0:
		if had == 0 {
			s.item = append(s.item, b...)
		}
		return len(b), incoming{}, nil
	}
	item := append(s.item[:0], all[:length]...)
	if s.item = item[:0]; cap(item) > keptMessage {
		s.item = nil
	}
	if length > largeCommand {
		return length - had, incoming{large: func() ([]byte, error) { return item, nil }, bytes: length}, nil
	}
	return length - had, incoming{command: item}, nil
}
