package wire

import (
	"bytes"
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
	kindDone
	kindMoved
)

// The least number of elements of these frames. Later versions may have more, never fewer.
const (
	messageElements = 9
	gapElements     = 7
)

// The number of elements of a message with by, and with claims.
const (
	messageWithBy     = 10
	messageWithClaims = 11
)

// gapWithDetail is the number of elements of a gap with a detail.
const gapWithDetail = gapElements + 1

// AppendCBOR appends the frame as one CBOR item; the zero Content is a heartbeat, null.
func (c Content) AppendCBOR(dst []byte) []byte {
	switch {
	case c.Message != nil:
		return appendMessageCBOR(dst, c.Message)
	case c.Gap != nil:
		return appendGapCBOR(dst, c.Gap)
	case c.Hello != nil:
		return appendValueCBOR(append(dst, cbor.Array|2, kindHello), "hello", c.Hello)
	case c.End != nil:
		return appendValueCBOR(append(dst, cbor.Array|2, kindEnd), "end", c.End)
	case c.Reply != nil:
		return appendReplyCBOR(dst, c.Reply)
	case c.Done != nil:
		return appendValueCBOR(append(dst, cbor.Array|2, kindDone), "done", c.Done)
	case c.Moved != nil:
		return appendValueCBOR(append(dst, cbor.Array|2, kindMoved), "moved", c.Moved)
	}
	return append(dst, cbor.Null)
}

// appendMessageCBOR appends m as one CBOR item:
//
//	[0, "a.b", "k3", 18, 1700000000000, null, {"n": 1}, null, null]
//	[0, "a.b", "k3", 19, 1700000000000, "text/plain", "hi", "id", "key"]
//	[0, "a.b", "k3", 20, 1700000000000, "image/png", h'8950', null, null]
//	[0, "a.b", "k3", 21, 1700000000000, null, 1, null, null, "alice", {"name": "Alice"}]
//
// The elements are kind, topic, epoch, offset, time, type, payload, id, key, by, claims.
// A message without claims, or without by and claims, ends before them.
func appendMessageCBOR(dst []byte, m *Message) []byte {
	elements := byte(messageElements)
	switch {
	case m.Claims != nil:
		elements = messageWithClaims
	case m.By != "":
		elements = messageWithBy
	}
	dst = append(dst, cbor.Array|elements, kindMessage)
	dst = cbor.AppendText(dst, m.Position.Topic)
	dst = cbor.AppendText(dst, m.Position.Epoch)
	dst = cbor.AppendHead(dst, cbor.Uint, m.Position.Offset)
	dst = cbor.AppendInt(dst, m.Time)
	dst = appendTextOrNull(dst, m.Type)
	switch {
	case m.Type == "" && m.CBOR:
		dst = append(dst, m.Data...)
	case m.Type == "":
		dst = cbor.AppendFromJSON(dst, m.Data)
	case m.IsText():
		dst = cbor.AppendText(dst, m.Data)
	default:
		dst = cbor.AppendBytes(dst, m.Data)
	}
	dst = appendTextOrNull(dst, m.ID)
	dst = appendTextOrNull(dst, m.Key)
	if elements >= messageWithBy {
		dst = appendTextOrNull(dst, m.By)
	}
	if elements >= messageWithClaims {
		dst = cbor.AppendFromJSON(dst, m.Claims)
	}
	return dst
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
//	[1, "a.b", "forbidden", "k3", 9, "k3", 19, "spam"]
//
// The elements are kind, topic, reason, epoch and offset after which messages are lost,
// epoch and offset of the last lost message, and the detail if there is one.
func appendGapCBOR(dst []byte, g *Gap) []byte {
	elements := byte(gapElements)
	if g.Detail != "" {
		elements = gapWithDetail
	}
	dst = append(dst, cbor.Array|elements, kindGap)
	dst = cbor.AppendText(dst, g.Topic)
	dst = cbor.AppendText(dst, string(g.Reason))
	dst = cbor.AppendText(dst, g.After.Epoch)
	dst = cbor.AppendHead(dst, cbor.Uint, g.After.Offset)
	dst = cbor.AppendText(dst, g.Position.Epoch)
	dst = cbor.AppendHead(dst, cbor.Uint, g.Position.Offset)
	if g.Detail != "" {
		dst = cbor.AppendText(dst, g.Detail)
	}
	return dst
}

// appendValueCBOR appends a value that is rare, converted from its JSON.
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
	if r.ExpiresMS != 0 {
		member("expires_ms")
		dst = cbor.AppendInt(dst, r.ExpiresMS)
	}
	if r.Unfollowed != 0 {
		member("unfollowed")
		dst = cbor.AppendInt(dst, int64(r.Unfollowed))
	}
	if r.Problem != nil {
		member("problem")
		dst = appendValueCBOR(dst, "reply", r.Problem)
	}
	return cbor.CloseHead(dst, head, cbor.Map, members)
}

// A CBORDecoder reads frames in CBOR. A JSON payload becomes JSON text, as from a Decoder.
// Only one goroutine may use it.
type CBORDecoder struct {
	from   io.Reader
	err    error        // of the last read
	buffer bytes.Buffer // read and not yet returned
	scan   cbor.Scan    // of the first item in buffer
	frames frameReader
}

// NewCBORDecoder returns a CBORDecoder that reads from r. It may read ahead.
func NewCBORDecoder(r io.Reader) *CBORDecoder { return &CBORDecoder{from: r} }

// readAhead is the least free space in the buffer for a read. maxIdleBuffer is the size that
// the buffer keeps after a large frame.
const (
	readAhead     = 4 << 10
	maxIdleBuffer = 1 << 20
)

// Next returns the content of the next frame; the zero Content is a heartbeat, or a frame
// of an unknown kind. At the end it returns io.EOF, or io.ErrUnexpectedEOF if the last item
// is cut off.
func (d *CBORDecoder) Next() (Content, error) {
	for {
		b := d.buffer.Bytes()
		switch length, err := d.scan.Next(b); {
		case err != nil:
			return Content{}, fmt.Errorf("frame %.40x: %w", b, err)
		case length > 0:
			return d.frames.read(d.buffer.Next(length))
		case len(b) > MaxFrameBytes:
			return Content{}, fmt.Errorf("frame %.40x is longer than %d bytes", b, MaxFrameBytes)
		case errors.Is(d.err, io.EOF) && len(b) > 0:
			return Content{}, io.ErrUnexpectedEOF
		case d.err != nil:
			return Content{}, d.err
		}
		d.read()
	}
}

// read reads more bytes into the buffer, which grows with the bytes received, not with the
// length that a frame announces.
func (d *CBORDecoder) read() {
	if d.buffer.Cap() > maxIdleBuffer && d.buffer.Len() < d.buffer.Cap()/4 {
		d.buffer = *bytes.NewBuffer(bytes.Clone(d.buffer.Bytes()))
	}
	d.buffer.Grow(readAhead)
	free := d.buffer.AvailableBuffer()
	n, err := d.from.Read(free[:cap(free)])
	d.buffer.Write(free[:n])
	d.err = err
}

// ParseItem reads the CBOR frame at the beginning of b, and returns its length. If the frame
// is cut off, the error is io.ErrUnexpectedEOF. A JSON payload becomes JSON text. The
// result shares no memory with b.
func ParseItem(b []byte) (Content, int, error) {
	item, _, err := cbor.Cut(b)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Content{}, 0, err
	case err != nil:
		return Content{}, 0, fmt.Errorf("frame %.40x: %w", b, err)
	}
	var frames frameReader
	c, err := frames.read(item)
	return c, len(item), err
}

// A frameReader reads the content of whole items. After an error, its methods return zero
// values.
type frameReader struct {
	last Position // its strings are reused

	cbor.Reader // of the item
	err         error
}

func (f *frameReader) read(item []byte) (Content, error) {
	f.Reader, f.err = *cbor.NewReader(item), nil
	c := f.content()
	if f.err == nil {
		f.err = c.check()
	}
	if f.err != nil {
		return Content{}, fmt.Errorf("frame %.40x: %w", item, f.err)
	}
	return c, nil
}

var errCBORFrame = errors.New("is not a frame")

// fewestElements is how many elements a frame of each kind has at least.
var fewestElements = [...]uint64{kindMessage: messageElements, kindGap: gapElements, kindHello: 2, kindEnd: 2, kindReply: 2, kindDone: 2, kindMoved: 2}

func (f *frameReader) content() (c Content) {
	h, err := f.Head()
	if err != nil || h.IsNull() {
		f.err = err
		return c
	}
	if h.Major != cbor.Array || h.Indefinite() || h.Arg == 0 {
		f.err = errCBORFrame
		return c
	}
	kind := f.uint()
	switch {
	case f.err != nil || kind >= uint64(len(fewestElements)): // a newer kind is skipped
		return c
	case h.Arg < fewestElements[kind]:
		f.err = errCBORFrame
		return c
	}
	switch kind {
	case kindMessage:
		c.Message = f.message(h.Arg)
	case kindGap:
		c.Gap = &Gap{Topic: f.text(f.last.Topic, false), Reason: GapReason(f.text("", false))}
		c.Gap.After = f.position(c.Gap.Topic)
		c.Gap.Position = f.position(c.Gap.Topic)
		if h.Arg >= gapWithDetail {
			c.Gap.Detail = f.text("", true)
		}
	case kindHello:
		c.Hello = readValue[Hello](f)
	case kindEnd:
		c.End = readValue[Problem](f)
	case kindReply:
		c.Reply = readValue[Reply](f)
	case kindDone:
		c.Done = readValue[Done](f)
	case kindMoved:
		c.Moved = readValue[Moved](f)
	}
	return c
}

// readValue reads a value with the same fields as in JSON.
func readValue[T any](f *frameReader) *T {
	value := new(T)
	text, err := f.AppendPayload(nil)
	if err == nil {
		err = unmarshal(text, value)
	}
	f.err = err
	return value
}

func (f *frameReader) message(elements uint64) *Message {
	m := &Message{Position: f.position(f.text(f.last.Topic, false))}
	if f.err == nil {
		m.Time, f.err = f.Int()
	}
	m.Type = f.text("", true)
	switch {
	case f.err != nil:
	case m.Type != "":
		m.Data = append([]byte{}, f.string(cbor.Bytes, false)...)
	default:
		m.Data, f.err = f.AppendPayload(make([]byte, 0, f.Len()))
	}
	m.ID = f.text("", true)
	m.Key = f.text("", true)
	if elements >= messageWithBy {
		m.By = f.text("", true)
	}
	if elements >= messageWithClaims && f.err == nil {
		var claims []byte
		claims, f.err = f.AppendPayload(nil)
		m.setClaims(claims)
	}
	return m
}

func (f *frameReader) uint() (n uint64) {
	if f.err == nil {
		n, f.err = f.Uint()
	}
	return n
}

// text reads a text string. It reuses last if the text is the same. If orNull is set, null
// is "".
func (f *frameReader) text(last string, orNull bool) string {
	s := f.string(cbor.Text, orNull)
	if string(s) == last {
		return last
	}
	return string(s)
}

// string reads a string of type text or of an alternative type, without copying it.
func (f *frameReader) string(alternative byte, orNull bool) (s []byte) {
	var h cbor.Head
	if f.err == nil {
		h, f.err = f.Head()
	}
	switch {
	case f.err != nil || orNull && h.IsNull():
	case h.Major == cbor.Text || h.Major == alternative:
		s, f.err = f.StringBody(h)
	default:
		f.err = errCBORFrame
	}
	return s
}

// position reads and checks the epoch and the offset of a position of topic.
func (f *frameReader) position(topic string) Position {
	p := Position{Topic: topic, Epoch: f.text(f.last.Epoch, false), Offset: f.uint()}
	if f.err != nil {
		return p
	}
	if p.Topic != f.last.Topic {
		if err := CheckPattern(p.Topic); err != nil {
			f.err = fmt.Errorf("position %s: %w", Quote(p.String()), err)
			return p
		}
	}
	if p.Epoch != f.last.Epoch && !isEpoch(p.Epoch) || p.Offset > MaxOffset {
		f.err = fmt.Errorf("position %s is not valid", Quote(p.String()))
		return p
	}
	f.last = p
	return p
}
