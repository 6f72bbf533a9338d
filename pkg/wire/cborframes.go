package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// The first element of a frame in CBOR.
const (
	kindMessage = iota
	kindGap
	kindHello
	kindEnd
	kindReply
)

// How many elements the frames have that say all in elements. There may be more in
// time, never fewer.
const (
	messageElements = 9
	gapElements     = 7
)

// appendMessageCBOR appends m as one CBOR item:
//
//	[0, "a.b", "k3", 18, 1700000000000, null, {"n": 1}, null, null]
//	[0, "a.b", "k3", 19, 1700000000000, "text/plain", "hi", "id", "key"]
//	[0, "a.b", "k3", 20, 1700000000000, "image/png", h'8950', null, null]
//
// that is kind, topic, epoch, offset, time, type, payload, id, key.
func appendMessageCBOR(dst []byte, m *Message) []byte {
	dst = append(dst, cbor.Array|messageElements, kindMessage)
	dst = cbor.AppendText(dst, m.Position.Topic)
	dst = cbor.AppendText(dst, m.Position.Epoch)
	dst = cbor.AppendHead(dst, cbor.Uint, m.Position.Offset)
	dst = cbor.AppendInt(dst, m.Time)
	dst = appendTextOrNull(dst, m.Type)
	dst = appendPayloadCBOR(dst, m)
	dst = appendTextOrNull(dst, m.ID)
	return appendTextOrNull(dst, m.Key)
}

func appendPayloadCBOR(dst []byte, m *Message) []byte {
	switch {
	case m.Type == "" && m.CBOR:
		return append(dst, m.Data...)
	case m.Type == "":
		return cbor.AppendFromJSON(dst, m.Data)
	case m.IsText():
		return cbor.AppendText(dst, m.Data)
	}
	return cbor.AppendBytes(dst, m.Data)
}

func appendTextOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, cbor.Null)
	}
	return cbor.AppendText(dst, s)
}

// appendGapCBOR appends g as one CBOR item:
//
//	[1, "a.b", "slow", "k3", 9, "k3", 19]
//
// that is kind, topic, reason, epoch and offset after which messages are lost, and
// epoch and offset of the last one lost.
func appendGapCBOR(dst []byte, g *Gap) []byte {
	dst = append(dst, cbor.Array|gapElements, kindGap)
	dst = cbor.AppendText(dst, g.Topic)
	dst = cbor.AppendText(dst, string(g.Reason))
	dst = cbor.AppendText(dst, g.After.Epoch)
	dst = cbor.AppendHead(dst, cbor.Uint, g.After.Offset)
	dst = cbor.AppendText(dst, g.Position.Epoch)
	return cbor.AppendHead(dst, cbor.Uint, g.Position.Offset)
}

// appendValueCBOR appends what is sent seldom, by way of its JSON.
func appendValueCBOR(dst []byte, name string, value any) []byte {
	return cbor.AppendFromJSON(dst, appendValue(nil, name, value))
}

// appendReplyCBOR appends r as a CBOR frame.
func appendReplyCBOR(dst []byte, r *Reply) []byte {
	head := len(dst) + 2
	dst = append(dst, cbor.Array|2, kindReply, cbor.Map)
	members := uint64(0)
	member := func(name string) {
		members++
		dst = cbor.AppendText(dst, name)
	}
	if r.Ref != nil {
		member("ref")
		dst = cbor.AppendHead(dst, cbor.Uint, *r.Ref)
	}
	if len(r.Positions) > 0 {
		member("positions")
		dst = cbor.AppendHead(dst, cbor.Array, uint64(len(r.Positions)))
		for _, p := range r.Positions {
			dst = cbor.AppendText(dst, p.String())
		}
	}
	if r.Position != nil {
		member("position")
		dst = cbor.AppendText(dst, r.Position.String())
	}
	if r.Time != 0 {
		member("time")
		dst = cbor.AppendInt(dst, r.Time)
	}
	if r.Problem != nil {
		member("problem")
		dst = appendValueCBOR(dst, "reply", r.Problem)
	}
	return cbor.CloseHead(dst, head, cbor.Map, members)
}

// A CBORDecoder reads frames in CBOR. It is for one goroutine.
type CBORDecoder struct {
	// KeepCBOR leaves a JSON payload in CBOR: Message.CBOR is true then. Otherwise
	// it becomes JSON text, as from a Decoder.
	KeepCBOR bool

	from io.Reader
	err  error  // of from; after it nothing is read
	b    []byte // read and not yet returned
	room []byte // what b is part of
	item cbor.Scan

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
	item := d.b[:d.item.Length()]
	d.b = d.b[d.item.Length():]
	d.item.Reset()
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
	var s cbor.Scan
	whole, err := s.Next(b)
	if err == nil && !whole {
		return Content{}, 0, io.ErrUnexpectedEOF
	}
	if err != nil {
		return Content{}, 0, fmt.Errorf("frame %.40x: %w", b, err)
	}
	var frames frameReader
	c, err := frames.read(b[:s.Length()])
	return c, s.Length(), err
}

// A frameReader makes contents of whole items.
type frameReader struct {
	keepCBOR bool
	last     Position // its strings are used again
}

func (f *frameReader) read(item []byte) (Content, error) {
	c, err := f.content(cbor.NewReader(item))
	if err != nil {
		return Content{}, fmt.Errorf("frame %.40x: %w", item, err)
	}
	return c, nil
}

var errCBORFrame = errors.New("is no frame")

func (f *frameReader) content(r *cbor.Reader) (c Content, err error) {
	h, err := r.Head()
	if err != nil || h.IsNull() {
		return c, err
	}
	if h.Major != cbor.Array || h.Indefinite() || h.Arg == 0 {
		return c, errCBORFrame
	}
	kind, err := r.Uint()
	if err != nil {
		return c, err
	}
	if h.Arg < fewestElements(kind) {
		return c, errCBORFrame
	}
	switch kind {
	case kindMessage:
		c.Message, err = f.message(r)
	case kindGap:
		c.Gap, err = f.gap(r)
	case kindHello:
		c.Hello = &Hello{}
		err = readValue(r, c.Hello)
	case kindEnd:
		c.End = &Problem{}
		err = readValue(r, c.End)
	case kindReply:
		c.Reply = &Reply{}
		err = readValue(r, c.Reply)
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

// readValue reads a value that has the same members in JSON.
func readValue(r *cbor.Reader, into any) error {
	text, err := r.AppendPayload(nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func (f *frameReader) gap(r *cbor.Reader) (*Gap, error) {
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

func (f *frameReader) message(r *cbor.Reader) (*Message, error) {
	topic, err := f.name(r, f.last.Topic)
	if err != nil {
		return nil, err
	}
	m := &Message{}
	if m.Position, err = f.position(r, topic); err != nil {
		return nil, err
	}
	if m.Time, err = r.Int(); err != nil {
		return nil, err
	}
	if m.Type, err = r.TextOrNull(); err != nil {
		return nil, err
	}
	if err = f.payload(r, m); err != nil {
		return nil, err
	}
	if m.ID, err = r.TextOrNull(); err != nil {
		return nil, err
	}
	m.Key, err = r.TextOrNull()
	return m, err
}

func (f *frameReader) payload(r *cbor.Reader, m *Message) (err error) {
	if m.Type != "" {
		m.Data, err = r.StringBytes()
		return err
	}
	if !f.keepCBOR {
		m.Data, err = r.AppendPayload(make([]byte, 0, r.Len()))
		return err
	}
	item, err := r.SkipPayload()
	m.Data, m.CBOR = bytes.Clone(item), true
	return err
}

// name reads a text string, which is mostly the same as the last one.
func (f *frameReader) name(r *cbor.Reader, last string) (string, error) {
	h, err := r.Head()
	if err != nil {
		return "", err
	}
	if h.Major != cbor.Text {
		return "", errCBORFrame
	}
	s, err := r.Text(h)
	if string(s) == last {
		return last, err
	}
	return string(s), err
}

// position reads the epoch and the offset of a position of topic, and checks it.
func (f *frameReader) position(r *cbor.Reader, topic string) (p Position, err error) {
	p.Topic = topic
	if p.Epoch, err = f.name(r, f.last.Epoch); err != nil {
		return p, err
	}
	if p.Offset, err = r.Uint(); err != nil {
		return p, err
	}
	if p.Topic != f.last.Topic {
		if err := CheckPattern(p.Topic); err != nil {
			return p, fmt.Errorf("position %q: %w", p, err)
		}
	}
	if !isEpoch(p.Epoch) || p.Offset > MaxOffset {
		return p, fmt.Errorf("position %q is none", p)
	}
	f.last = p
	return p, nil
}
