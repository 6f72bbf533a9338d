package transport

import (
	"encoding/binary"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A sequence reads what comes on a bare connection: commands, each a CBOR item (RFC
// 8742). It only finds where items end, in one pass over what comes, however it is
// cut; what they say is for whoever takes them to read. null says nothing.
type sequence struct {
	most int
	item []byte   // what is there of it
	skip uint64   // bytes of a string's content that have yet to come
	open []uint64 // items that each array, map or tag around what comes next has yet to get; see endless
}

const (
	// endless is a level of indefinite length, which a break ends.
	endless = ^uint64(0)

	// maxLevels is deeper than any command is: a message in it may be wire.MaxJSONDepth.
	maxLevels = wire.MaxJSONDepth + 8

	majorBytes, majorText, majorArray, majorMap, majorTag, majorSimple = 2, 3, 4, 5, 6, 7

	breakByte, nullByte = 0xff, 0xf6
)

// NewSequence returns a Reader of CBOR items, whose commands may carry messages of so
// many bytes.
func NewSequence(messageBytes int) Reader { return &sequence{most: maxCommand(messageBytes)} }

// Bye implements Reader: the end frame says all.
func (s *sequence) Bye(dst []byte, _ *wire.Problem) []byte { return dst }

// Read implements Reader.
func (s *sequence) Read(b []byte) (n int, in Incoming, err error) {
	whole := false
	for n < len(b) && !whole {
		if s.skip > 0 {
			k := min(s.skip, uint64(len(b)-n))
			n, s.skip = n+int(k), s.skip-k
			whole = s.skip == 0 && s.itemEnded()
			continue
		}
		k, ended, err := s.readHead(b[n:])
		if err != nil {
			return 0, Incoming{}, err
		}
		if k == 0 {
			break
		}
		n += k
		whole = ended && s.itemEnded()
	}
	if s.item = append(s.item, b[:n]...); len(s.item) > s.most || s.skip > uint64(s.most) {
		return 0, Incoming{}, commandTooLarge(s.most)
	}
	if !whole {
		return n, Incoming{}, nil
	}
	return n, Incoming{Command: s.whole()}, nil
}

// whole returns the item that has come, which is valid until the next Read; nil if it
// is null.
func (s *sequence) whole() []byte {
	item := s.item
	if s.item = s.item[:0]; cap(s.item) > keptMessage {
		s.item = nil
	}
	if len(item) == 1 && item[0] == nullByte {
		return nil
	}
	return item
}

// readHead reads the head of an item (RFC 8949, section 3). It takes nothing while the
// head is not all there. ended says that the item is no more than its head.
func (s *sequence) readHead(b []byte) (n int, ended bool, err error) {
	major, short := b[0]>>5, b[0]&31
	if b[0] == breakByte {
		return 1, true, s.endLevel()
	}
	n, argument, ok := readArgument(b, short)
	switch {
	case !ok:
		return 0, false, badSequence("a head is malformed")
	case n == 0:
		return 0, false, nil
	case short == 31 && (major < majorBytes || major >= majorTag):
		return 0, false, badSequence("an item has no length that may have none")
	case major == majorBytes, major == majorText:
		if short == 31 {
			return n, false, s.beginLevel(endless)
		}
		s.skip = argument
		return n, argument == 0, nil
	case major == majorArray, major == majorMap:
		if short != 31 && argument > uint64(s.most) {
			return 0, false, commandTooLarge(s.most)
		}
		if major == majorMap && short != 31 {
			argument *= 2
		}
		return n, argument == 0, s.beginLevel(argument)
	case major == majorTag:
		return n, false, s.beginLevel(1)
	}
	return n, true, nil
}

// readArgument reads a head's argument. n is 0 while it is not all there.
func readArgument(b []byte, short byte) (n int, argument uint64, ok bool) {
	switch {
	case short < 24:
		return 1, uint64(short), true
	case short == 31:
		return 1, endless, true
	case short > 27:
		return 0, 0, false
	}
	size := 1 << (short - 24)
	if len(b) < 1+size {
		return 0, 0, true
	}
	var wide [8]byte
	copy(wide[8-size:], b[1:1+size])
	return 1 + size, binary.BigEndian.Uint64(wide[:]), true
}

// beginLevel begins what has so many items in it.
func (s *sequence) beginLevel(items uint64) error {
	if items == 0 {
		return nil
	}
	if len(s.open) == maxLevels {
		return badSequence("it is nested too deep")
	}
	s.open = append(s.open, items)
	return nil
}

// endLevel ends a level that a break ends.
func (s *sequence) endLevel() error {
	last := len(s.open) - 1
	if last < 0 || s.open[last] != endless {
		return badSequence("a break ends nothing")
	}
	s.open = s.open[:last]
	return nil
}

// itemEnded counts an item that has ended, with the levels that it ends. It reports
// whether the outermost has.
func (s *sequence) itemEnded() bool {
	for last := len(s.open) - 1; last >= 0; last-- {
		if s.open[last] == endless {
			return false
		}
		if s.open[last]--; s.open[last] > 0 {
			return false
		}
		s.open = s.open[:last]
	}
	return true
}

func badSequence(why string) *wire.Problem {
	return wire.NewProblem(wire.CodeInvalidRequest, "send a CBOR sequence (RFC 8742)", "what was sent cannot be read: %s", why)
}
