package transport

import (
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A sequence reads the commands on a TCP connection: each is one item of a CBOR sequence
// (RFC 8742). It only finds where items end. null is a heartbeat.
type sequence struct {
	most int
	item []byte // the part that was read of an unfinished item
	scan cbor.Scan
}

// newSequence returns a reader of commands that may carry messages of so many bytes.
func newSequence(messageBytes int) *sequence { return &sequence{most: maxCommand(messageBytes)} }

// AppendBye implements reader: nothing follows the end frame.
func (s *sequence) AppendBye(dst []byte, _ *wire.Problem) []byte { return dst }

// Partial implements reader.
func (s *sequence) Partial() bool { return len(s.item) > 0 }

// Held implements reader.
func (s *sequence) Held() int { return len(s.item) }

// Read implements reader.
func (s *sequence) Read(b []byte) (n int, in incoming, err error) {
	had := len(s.item)
	if had == 0 {
		if n := nulls(b); n > 0 {
			return n, incoming{}, nil
		}
	}
	all := b
	if had > 0 {
		s.item = append(s.item, b...)
		all = s.item
	}
	whole, err := s.scan.Next(all)
	switch {
	case err != nil:
		return 0, incoming{}, wire.NewProblem(wire.CodeInvalidRequest, "send a CBOR sequence (RFC 8742)", "what was sent cannot be read: %v", err)
	case len(all) > s.most && (!whole || s.scan.Length() > s.most):
		return 0, incoming{}, commandTooLarge(s.most)
	case !whole:
		if had == 0 {
			s.item = append(s.item, b...)
		}
		return len(b), incoming{}, nil
	}
	n = s.scan.Length() - had
	return n, incoming{command: s.whole(all)}, nil
}

// nulls returns how many nulls b begins with. No rate limits them, so they must cost no
// more than reading.
func nulls(b []byte) (n int) {
	for n < len(b) && b[n] == cbor.Null {
		n++
	}
	return n
}

// whole returns the item at the beginning of all, which is valid until the next Read.
func (s *sequence) whole(all []byte) []byte {
	item := append(s.item[:0], all[:s.scan.Length()]...)
	s.scan.Reset()
	if s.item = item[:0]; cap(item) > keptMessage {
		s.item = nil
	}
	return item
}
