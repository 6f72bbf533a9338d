package client

import (
	"bytes"
	"fmt"
	"io"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A frameReader reads the frames of an answer from bytes in pieces of any size.
type frameReader interface {
	// Feed reads b, which follows all that was fed before.
	Feed(b []byte, sink FrameSink) error
	// Finish says that the answer is over. A frame without its end was cut off.
	Finish() error
}

// An itemScanner is a Scanner of frames in CBOR. It sees what wire.ParseItem sees.
type itemScanner struct {
	items *itemCache
	carry []byte    // the beginning of an item whose end has not come
	scan  cbor.Scan // how far that was looked at
}

// Feed is part of frameReader.
func (s *itemScanner) Feed(b []byte, sink FrameSink) error {
	for len(b) > 0 {
		n, err := s.step(b, sink)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// step takes one item, or as much of it as there is, and returns how much of b
// that is.
func (s *itemScanner) step(b []byte, sink FrameSink) (int, error) {
	// Fast path: the very bytes of the last item, whose end is in them.
	if len(s.carry) == 0 && s.items.isPrefixOf(b) {
		return len(s.items.item), sink.Frame(&s.items.frame)
	}
	carried := len(s.carry)
	all := b
	if carried > 0 {
		all = append(s.carry, b...)
	}
	n, err := s.scan.Next(all)
	switch {
	case err != nil:
		return 0, fmt.Errorf("frame %.40x: %w", all, err)
	case n == 0 && len(all) > wire.MaxFrameBytes:
		return 0, fmt.Errorf("frame %.40x is longer than %d bytes", all, wire.MaxFrameBytes)
	case n == 0:
		s.carry = append(s.carry[:carried], b...)
		return len(b), nil
	}
	s.carry = s.carry[:0]
	f, err := s.items.parse(all[:n])
	if err != nil {
		return 0, err
	}
	return n - carried, sink.Frame(f)
}

// Finish is part of frameReader.
func (s *itemScanner) Finish() error {
	if len(s.carry) > 0 {
		return fmt.Errorf("the answer ends within frame %.40x: %w", s.carry, io.ErrUnexpectedEOF)
	}
	return nil
}

// An itemCache keeps the last item that was read and what it says. A broadcast
// sends one item to everyone.
type itemCache struct {
	item  []byte
	frame Frame
}

func (c *itemCache) isPrefixOf(b []byte) bool {
	return len(c.item) > 0 && bytes.HasPrefix(b, c.item)
}

// parse reads one whole item.
func (c *itemCache) parse(item []byte) (*Frame, error) {
	// Fast path: the very bytes of the last item.
	if len(c.item) > 0 && bytes.Equal(item, c.item) {
		return &c.frame, nil
	}
	c.item = c.item[:0]
	content, n, err := wire.ParseItem(item)
	if err != nil {
		return nil, err
	}
	if n != len(item) {
		return nil, fmt.Errorf("frame %.40x is followed by %d more bytes", item, len(item)-n)
	}
	c.item, c.frame = append(c.item, item...), frameOf(content)
	return &c.frame, nil
}
