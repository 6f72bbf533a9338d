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

// NewSequence returns a Reader of CBOR items, whose commands may carry messages of so
// many bytes.
func NewSequence(messageBytes int) Reader { return &sequence{most: maxCommand(messageBytes)} }

// Bye implements Reader: the end frame says all.
func (s *sequence) Bye(dst []byte, _ *wire.Problem) []byte { return dst }

// Partial implements Reader.
func (s *sequence) Partial() bool { return len(s.item) > 0 }

// Held implements Reader.
func (s *sequence) Held() int { return len(s.item) }

// Close implements Reader.
func (s *sequence) Close() { s.item = nil }

// Read implements Reader.
func (s *sequence) Read(b []byte) (n int, in Incoming, err error) {
	had := len(s.item)
	if had == 0 {
		if n := nulls(b); n > 0 {
			return n, Incoming{}, nil
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
		return 0, Incoming{}, wire.NewProblem(wire.CodeInvalidRequest, "send a CBOR sequence (RFC 8742)", "what was sent cannot be read: %v", err)
	case len(all) > s.most && (!whole || s.scan.Length() > s.most):
		return 0, Incoming{}, commandTooLarge(s.most)
	case !whole && had == 0:
		s.item = append(s.item, b...)
		return len(b), Incoming{}, nil
	case !whole:
		return len(b), Incoming{}, nil
	}
	n = s.scan.Length() - had
	return n, Incoming{Command: s.whole(all)}, nil
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
