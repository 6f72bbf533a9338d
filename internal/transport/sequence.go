package transport

import (
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A sequence reads what comes on a bare connection: commands, each a CBOR item (RFC
// 8742). It only finds where items end, however they are cut; what they say is for
// whoever takes them to read. null says nothing.
type sequence struct {
	most int
	item []byte // what is there of it, unless all of it is
	scan cbor.Scan
}

// newSequence returns a reader of commands that may carry messages of so many bytes.
func newSequence(messageBytes int) *sequence { return &sequence{most: maxCommand(messageBytes)} }

// AppendBye implements reader: the end frame says all.
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
	case !whole && had == 0:
		s.item = append(s.item, b...)
		return len(b), incoming{}, nil
	case !whole:
		return len(b), incoming{}, nil
	}
	n = s.scan.Length() - had
	return n, incoming{command: s.whole(all)}, nil
}

// nulls is how many of them b begins with. No limit counts those, so however many
// there are cost no more than to be read.
func nulls(b []byte) (n int) {
	for n < len(b) && b[n] == cbor.Null {
		n++
	}
	return n
}

// whole returns the item that all begins with, which is valid until the next Read.
func (s *sequence) whole(all []byte) []byte {
	item := append(s.item[:0], all[:s.scan.Length()]...)
	s.scan, s.item = cbor.Scan{}, item[:0]
	if cap(item) > keptMessage {
		s.item = nil
	}
	return item
}
