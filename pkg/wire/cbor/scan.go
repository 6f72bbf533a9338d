package cbor

import (
	"errors"
	"fmt"
	"io"
	"math"
)

// A Scan finds the end of an item that arrives in pieces. It reads each byte once, and checks
// only what it needs to find the end.
type Scan struct {
	at   int      // of the next byte
	open []uint64 // for each open container: how many items still follow
}

// endless stands in Scan.open for a container that a break ends.
const endless = math.MaxUint64

// maxOpen bounds the nesting of a frame: an array around a payload whose keys and values may
// be in parts.
const maxOpen = 2*MaxDepth + 4

// ErrNested is the error of an item that nests deeper than any frame.
var ErrNested = errors.New("it nests too deep for a frame")

// Next continues in b, which begins with the bytes of the previous call. It returns the
// length of the item, or 0 if the item is not whole. After a whole item, the Scan is ready
// for another one.
func (s *Scan) Next(b []byte) (length int, err error) {
	for s.at == 0 || len(s.open) > 0 {
		r := Reader{b: b, at: s.at}
		h, err := r.Head()
		size := uint64(0)
		if h.Major == Bytes || h.Major == Text {
			size = h.Arg
		}
		switch {
		case errors.Is(err, errCut):
			return 0, nil
		case err != nil:
			return 0, err
		case size > MaxItemBytes:
			return 0, fmt.Errorf("it is longer than %d bytes", MaxItemBytes)
		case size > uint64(r.Len()):
			return 0, nil
		}
		s.at = r.at + int(size)
		if err := s.count(h); err != nil {
			return 0, err
		}
	}
	length, s.at = s.at, 0
	return length, nil
}

// count counts an item whose head was read, or a string that was read to its end.
func (s *Scan) count(h Head) error {
	n := len(s.open)
	switch {
	case h.Major == Other && h.Indefinite():
		if n == 0 || s.open[n-1] != endless {
			return errBreak
		}
		s.open = s.open[:n-1]
	case n > 0 && s.open[n-1] != endless:
		s.open[n-1]--
	}
	holds, opens := h.Arg, true
	switch {
	case h.Major == Other:
		opens = false
	case h.Indefinite():
		holds = endless
	case h.Major == Array:
		holds = min(holds, MaxItemBytes) // a frame has no more
	case h.Major == Map:
		holds = 2 * min(holds, MaxItemBytes)
	case h.Major == Tag:
		holds = 1
	default:
		opens = false
	}
	if opens && len(s.open) == maxOpen {
		return ErrNested
	} else if opens {
		s.open = append(s.open, holds)
	}
	for n := len(s.open); n > 0 && s.open[n-1] == 0; n-- {
		s.open = s.open[:n-1]
	}
	return nil
}

// Cut returns the first item of a CBOR sequence and the rest. It checks only where the item
// ends. If the item is cut off, the error is io.ErrUnexpectedEOF.
func Cut(sequence []byte) (item, rest []byte, err error) {
	length, err := new(Scan).Next(sequence)
	if err == nil && length == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, sequence, err
	}
	return sequence[:length:length], sequence[length:], nil
}
