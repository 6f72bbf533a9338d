package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// A CBORDecoder reads frames in CBOR. It is for one goroutine.
type CBORDecoder struct {
	// KeepCBOR leaves a JSON payload in CBOR: Message.CBOR is true then. Otherwise
	// it becomes JSON text, as from a Decoder.
	KeepCBOR bool

	from io.Reader
	err  error  // of from; after it nothing is read
	b    []byte // read and not yet returned
	room []byte // what b is part of
	item ItemScan

	frames frameReader
}

// NewCBORDecoder returns a CBORDecoder of r, which it may read ahead.
func NewCBORDecoder(r io.Reader) *CBORDecoder { return &CBORDecoder{from: r} }

// readAhead is how much room a CBORDecoder reads into at least; keptRoom is how much
// it keeps after a large frame.
const (
	readAhead = 4 << 10
	keptRoom  = 1 << 20
)

// Next returns the next frame's content; the zero Content is a heartbeat, or a frame
// of a kind that is not known here. At a clean end it returns io.EOF; if the last
// item is cut off, io.ErrUnexpectedEOF.
func (d *CBORDecoder) Next() (Content, error) {
	for {
		switch whole, err := d.item.Next(d.b); {
		case err != nil:
			return Content{}, fmt.Errorf("frame %.40x: %w", d.b, err)
		case whole:
			return d.take()
		case len(d.b) > MaxFrameBytes:
			return Content{}, fmt.Errorf("frame %.40x is longer than %d bytes", d.b, MaxFrameBytes)
		case errors.Is(d.err, io.EOF) && len(d.b) > 0:
			return Content{}, io.ErrUnexpectedEOF
		case d.err != nil:
			return Content{}, d.err
		}
		d.read()
	}
}

// take returns the item that was found, and forgets it.
func (d *CBORDecoder) take() (Content, error) {
	item := d.b[:d.item.at]
	d.b = d.b[d.item.at:]
	d.item.at = 0
	d.frames.keepCBOR = d.KeepCBOR
	return d.frames.read(item)
}

// read reads more.
func (d *CBORDecoder) read() {
	if len(d.b) == 0 || cap(d.b)-len(d.b) < readAhead {
		d.makeRoom()
	}
	n, err := d.from.Read(d.b[len(d.b):cap(d.b)])
	d.b, d.err = d.b[:len(d.b)+n], err
}

// makeRoom moves what was read to the front of the room, or to another of twice its
// size: memory grows with what came, whatever is announced.
func (d *CBORDecoder) makeRoom() {
	want := max(2*len(d.b), 2*readAhead)
	if want > len(d.room) || want < len(d.room)/4 && len(d.room) > keptRoom {
		d.room = make([]byte, want)
	}
	d.b = d.room[:copy(d.room, d.b)]
}

// ParseItem reads the frame in CBOR that b begins with, and returns how many bytes
// it has. If that is more than there are, the error is io.ErrUnexpectedEOF. A JSON
// payload becomes JSON text. The result shares no memory with b.
func ParseItem(b []byte) (Content, int, error) {
	var s ItemScan
	whole, err := s.Next(b)
	if err == nil && !whole {
		return Content{}, 0, io.ErrUnexpectedEOF
	}
	if err != nil {
		return Content{}, 0, fmt.Errorf("frame %.40x: %w", b, err)
	}
	var frames frameReader
	c, err := frames.read(b[:s.at])
	return c, s.at, err
}

// An ItemScan finds the end of an item of which more and more is there, and looks at
// each byte once. It judges no more than it needs to.
type ItemScan struct {
	at   int      // how far it is
	open []uint64 // how many items each container that is open still has
}

// endless is of a container that a break ends.
const endless = math.MaxUint64

// maxOpen bounds what a frame nests: a payload, each of whose keys and values may be
// in parts, within an array.
const maxOpen = 2*MaxJSONDepth + 4

var errCBORFrameDeep = errors.New("it is too deep for a frame")

// Next goes on in b, which begins as it did before, and reports whether the whole
// item is there: its end is s.at then.
func (s *ItemScan) Next(b []byte) (whole bool, err error) {
	for s.at == 0 || len(s.open) > 0 {
		r := cborReader{b: b, at: s.at}
		h, err := r.head()
		if errors.Is(err, errCBORCut) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if h.major == cborBytes || h.major == cborText {
			if h.arg > MaxFrameBytes {
				return false, fmt.Errorf("it is longer than %d bytes", MaxFrameBytes)
			}
			if _, err := r.take(h.arg); err != nil {
				return false, nil
			}
		}
		s.at = r.at
		if err := s.count(h); err != nil {
			return false, err
		}
	}
	return true, nil
}

// Length returns how long the item is, once all of it is there.
func (s *ItemScan) Length() int { return s.at }

// count counts an item whose head, or if it is a string all of it, was read.
func (s *ItemScan) count(h cborHead) error {
	n := len(s.open)
	switch {
	case h.major == cborOther && h.indefinite():
		if n == 0 || s.open[n-1] != endless {
			return errCBORBreak
		}
		s.open = s.open[:n-1]
	case n > 0 && s.open[n-1] != endless:
		s.open[n-1]--
	}
	if err := s.enter(h); err != nil {
		return err
	}
	for n := len(s.open); n > 0 && s.open[n-1] == 0; n-- {
		s.open = s.open[:n-1]
	}
	return nil
}

// enter opens what the item with head h holds.
func (s *ItemScan) enter(h cborHead) error {
	holds := h.arg
	switch {
	case h.major == cborOther:
		return nil
	case h.indefinite():
		holds = endless
	case h.major == cborArray:
		holds = min(holds, MaxFrameBytes) // more cannot be there
	case h.major == cborMap:
		holds = 2 * min(holds, MaxFrameBytes)
	case h.major == cborTag:
		holds = 1
	default:
		return nil
	}
	if len(s.open) == maxOpen {
		return errCBORFrameDeep
	}
	s.open = append(s.open, holds)
	return nil
}

// A frameReader makes contents of whole items.
type frameReader struct {
	keepCBOR bool
	last     Position // its strings are used again
}

func (f *frameReader) read(item []byte) (Content, error) {
	c, err := f.content(&cborReader{b: item})
	if err != nil {
		return Content{}, fmt.Errorf("frame %.40x: %w", item, err)
	}
	return c, nil
}

var errCBORFrame = errors.New("is no frame")

func (f *frameReader) content(r *cborReader) (c Content, err error) {
	h, err := r.head()
	if err != nil || h.major == cborOther && cborOther|h.info == cborNull {
		return c, err
	}
	if h.major != cborArray || h.indefinite() || h.arg == 0 {
		return c, errCBORFrame
	}
	kind, err := r.uint()
	if err != nil {
		return c, err
	}
	if h.arg < fewestElements(kind) {
		return c, errCBORFrame
	}
	switch kind {
	case kindMessage:
		c.Message, err = f.message(r)
	case kindGap:
		c.Gap, err = f.gap(r)
	case kindHello:
		c.Hello = &Hello{}
		err = r.value(c.Hello)
	case kindEnd:
		c.End = &Problem{}
		err = r.value(c.End)
	case kindReply:
		c.Reply = &Reply{}
		err = r.value(c.Reply)
	}
	return c, err
}

func fewestElements(kind uint64) uint64 {
	switch kind {
	case kindMessage:
		return messageElements
	case kindGap:
		return gapElements
	case kindHello, kindEnd, kindReply:
		return 2
	}
	return 1
}

// value reads what was sent as it is in JSON.
func (r *cborReader) value(into any) error {
	text, err := r.appendPayload(nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func (f *frameReader) gap(r *cborReader) (*Gap, error) {
	topic, err := f.name(r, f.last.Topic)
	if err != nil {
		return nil, err
	}
	reason, err := f.name(r, "")
	if err != nil {
		return nil, err
	}
	after, err := f.position(r, topic)
	if err != nil {
		return nil, err
	}
	position, err := f.position(r, topic)
	if err != nil {
		return nil, err
	}
	g := &Gap{Topic: topic, Reason: GapReason(reason), After: after, Position: position}
	return g, g.check()
}

func (f *frameReader) message(r *cborReader) (*Message, error) {
	topic, err := f.name(r, f.last.Topic)
	if err != nil {
		return nil, err
	}
	m := &Message{}
	if m.Position, err = f.position(r, topic); err != nil {
		return nil, err
	}
	if m.Time, err = r.int(); err != nil {
		return nil, err
	}
	if m.Type, err = r.textOrNull(); err != nil {
		return nil, err
	}
	if err = f.payload(r, m); err != nil {
		return nil, err
	}
	if m.ID, err = r.textOrNull(); err != nil {
		return nil, err
	}
	m.Key, err = r.textOrNull()
	return m, err
}

func (f *frameReader) payload(r *cborReader, m *Message) (err error) {
	if m.Type != "" {
		m.Data, err = r.stringBytes()
		return err
	}
	if !f.keepCBOR {
		m.Data, err = r.appendPayload(make([]byte, 0, len(r.b)-r.at))
		return err
	}
	from := r.at
	err = r.skipPayload()
	m.Data, m.CBOR = bytes.Clone(r.b[from:r.at]), true
	return err
}

// skipPayload checks a JSON payload.
func (r *cborReader) skipPayload() error {
	if text, ok := r.embedded(); ok {
		return validJSON(text)
	}
	c := cborCheck{cborReader: *r}
	err := c.item(0)
	if err == nil && c.beyond {
		err = errCBORNotJSON
	}
	r.at = c.at
	return err
}

// name reads a text string, which is mostly the same as the last one.
func (f *frameReader) name(r *cborReader, last string) (string, error) {
	h, err := r.head()
	if err != nil {
		return "", err
	}
	if h.major != cborText {
		return "", errCBORFrame
	}
	s, err := r.text(h)
	if string(s) == last {
		return last, err
	}
	return string(s), err
}

// position reads the epoch and the offset of a position of topic, and checks it.
func (f *frameReader) position(r *cborReader, topic string) (p Position, err error) {
	p.Topic = topic
	if p.Epoch, err = f.name(r, f.last.Epoch); err != nil {
		return p, err
	}
	if p.Offset, err = r.uint(); err != nil {
		return p, err
	}
	if p.Topic != f.last.Topic {
		if err := CheckPattern(p.Topic); err != nil {
			return p, fmt.Errorf("position %q: %w", p, err)
		}
	}
	if !isEpoch(p.Epoch) || p.Offset > maxOffset {
		return p, fmt.Errorf("position %q is none", p)
	}
	f.last = p
	return p, nil
}

func (r *cborReader) uint() (uint64, error) {
	h, err := r.head()
	if err == nil && h.major != cborUint {
		err = errCBORFrame
	}
	return h.arg, err
}

func (r *cborReader) int() (int64, error) {
	h, err := r.head()
	switch {
	case err != nil:
		return 0, err
	case h.arg > math.MaxInt64 || h.major != cborUint && h.major != cborNegative:
		return 0, errCBORFrame
	case h.major == cborNegative:
		return -1 - int64(h.arg), nil
	}
	return int64(h.arg), nil
}

func (r *cborReader) textOrNull() (string, error) {
	h, err := r.head()
	if err != nil || h.major == cborOther && cborOther|h.info == cborNull {
		return "", err
	}
	if h.major != cborText {
		return "", errCBORFrame
	}
	s, err := r.text(h)
	return string(s), err
}

// stringBytes returns a copy of a text or byte string.
func (r *cborReader) stringBytes() ([]byte, error) {
	h, err := r.head()
	if err != nil {
		return nil, err
	}
	var s []byte
	switch h.major {
	case cborText:
		s, err = r.text(h)
	case cborBytes:
		s, err = r.bytes(h)
	default:
		err = errCBORFrame
	}
	return append([]byte{}, s...), err
}
