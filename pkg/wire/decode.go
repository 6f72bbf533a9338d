package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// Content is what one frame says: exactly one member is set, or none for a
// heartbeat.
type Content struct {
	Message *Message
	Gap     *Gap
	Hello   *Hello
	End     *Problem
	Reply   *Reply
}

// Counts reports whether the frame is one that acks count: a message or a gap.
func (c Content) Counts() bool { return c.Message != nil || c.Gap != nil }

// AppendJSON appends the frame as one NDJSON line; the zero Content is a heartbeat.
func (c Content) AppendJSON(dst []byte) []byte {
	switch {
	case c.Message != nil:
		return appendMessage(dst, c.Message)
	case c.Gap != nil:
		return appendGap(dst, c.Gap)
	case c.Hello != nil:
		return appendNamed(dst, "hello", c.Hello)
	case c.End != nil:
		return appendNamed(dst, "end", c.End)
	case c.Reply != nil:
		return appendReply(dst, c.Reply)
	}
	return append(dst, '\n')
}

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
	}
	return append(dst, cbor.Null)
}

// jsonFrame has every member that a frame may have. Members that it does not
// know are ignored, so that frames may grow.
type jsonFrame struct {
	Position *Position       `json:"position"`
	Time     int64           `json:"time"`
	ID       string          `json:"id"`
	Key      string          `json:"key"`
	Type     string          `json:"type"`
	Data     json.RawMessage `json:"data"`
	Text     *string         `json:"text"`
	Base64   *[]byte         `json:"base64"`
	Gap      *Gap            `json:"gap"`
	Hello    *Hello          `json:"hello"`
	End      *Problem        `json:"end"`
	Reply    *Reply          `json:"reply"`
}

// ParseLine reads one NDJSON frame, with or without its newline. The result
// shares no memory with line.
func ParseLine(line []byte) (Content, error) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return Content{}, nil
	}
	var f jsonFrame
	if err := json.Unmarshal(line, &f); err != nil {
		return Content{}, fmt.Errorf("frame %.80q: %w", line, err)
	}
	c, err := f.content()
	if err != nil {
		return Content{}, fmt.Errorf("frame %.80q: %w", line, err)
	}
	return c, nil
}

func (f *jsonFrame) content() (Content, error) {
	kinds := 0
	for _, present := range []bool{f.Position != nil, f.Gap != nil, f.Hello != nil, f.End != nil, f.Reply != nil} {
		if present {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return Content{}, errors.New("is not exactly one of message, gap, hello, end and reply")
	case f.Gap != nil:
		return Content{Gap: f.Gap}, f.Gap.check()
	case f.Hello != nil:
		return Content{Hello: f.Hello}, nil
	case f.End != nil:
		return Content{End: f.End}, nil
	case f.Reply != nil:
		return Content{Reply: f.Reply}, nil
	}
	m, err := f.message()
	return Content{Message: m}, err
}

func (f *jsonFrame) message() (*Message, error) {
	m := &Message{Position: *f.Position, Time: f.Time, Type: f.Type, ID: f.ID, Key: f.Key}
	switch {
	case f.Data != nil && f.Type == "" && f.Text == nil && f.Base64 == nil:
		m.Data = f.Data
	case f.Text != nil && f.Type != "" && f.Data == nil && f.Base64 == nil:
		m.Data = []byte(*f.Text)
	case f.Base64 != nil && f.Type != "" && f.Data == nil && f.Text == nil:
		m.Data = *f.Base64
	default:
		return nil, errors.New("a message has data, or a type and either text or base64")
	}
	return m, nil
}

// MaxFrameBytes is the largest frame that a Decoder takes: the largest message
// that can be configured (8 MiB), as a string of escapes.
const MaxFrameBytes = cbor.MaxItemBytes

// A Decoder reads NDJSON frames. It is for one goroutine.
type Decoder struct {
	lines *bufio.Reader
	line  []byte // the part of a line that came before the reader's buffer ended
}

// NewDecoder returns a Decoder of r, which it may read ahead.
func NewDecoder(r io.Reader) *Decoder {
	return &Decoder{lines: bufio.NewReader(r)}
}

// Next returns the next frame's content; the zero Content is a heartbeat. At a
// clean end it returns io.EOF; if the last line has no newline, its frame was
// cut off and it returns io.ErrUnexpectedEOF.
func (d *Decoder) Next() (Content, error) {
	d.line = d.line[:0]
	for {
		part, err := d.lines.ReadSlice('\n')
		d.line = append(d.line, part...)
		switch {
		case err == nil:
			return ParseLine(d.line)
		case len(d.line) > MaxFrameBytes:
			return Content{}, fmt.Errorf("frame %.80q is longer than %d bytes", d.line, MaxFrameBytes)
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(d.line) > 0:
			return Content{}, io.ErrUnexpectedEOF
		default:
			return Content{}, err
		}
	}
}
