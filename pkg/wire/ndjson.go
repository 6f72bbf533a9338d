package wire

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// AppendJSON appends the frame as one NDJSON line; the zero Content is a heartbeat.
func (c Content) AppendJSON(dst []byte) []byte {
	switch {
	case c.Message != nil:
		return appendMessage(dst, c.Message)
	case c.Gap != nil:
		return appendGap(dst, c.Gap)
	case c.Moved != nil:
		return appendNamed(dst, "moved", c.Moved)
	case c.Hello != nil:
		return appendNamed(dst, "hello", c.Hello)
	case c.End != nil:
		return appendNamed(dst, "end", c.End)
	case c.Reply != nil:
		return appendReply(dst, c.Reply)
	case c.Done != nil:
		return appendNamed(dst, "done", c.Done)
	}
	return append(dst, '\n')
}

// appendMessage appends m as one NDJSON line:
//
//	{"position":"a.b@k3:18","time":1700000000000,"data":[1,2]}
//	{"position":"a.b@k3:19","time":1700000000000,"type":"text/plain","text":"hi"}
//	{"position":"a.b@k3:20","time":1700000000000,"type":"image/png","base64":"iVBO"}
//
// The position comes first and the payload last. id, key, by and claims, if any, follow
// the time.
func appendMessage(dst []byte, m *Message) []byte {
	dst = append(dst, `{"position":"`...)
	dst = m.Position.Append(dst)
	dst = append(dst, `","time":`...)
	dst = strconv.AppendInt(dst, m.Time, 10)
	if m.ID != "" {
		dst = cbor.AppendJSONString(append(dst, `,"id":`...), m.ID)
	}
	if m.Key != "" {
		dst = cbor.AppendJSONString(append(dst, `,"key":`...), m.Key)
	}
	if m.By != "" {
		dst = cbor.AppendJSONString(append(dst, `,"by":`...), m.By)
	}
	if m.Claims != nil {
		dst = append(append(dst, `,"claims":`...), m.Claims...)
	}
	return append(m.AppendPayload(dst), '}', '\n')
}

// AppendPayload appends the fields of the payload, with a comma before each: data, or
// type with text or base64.
func (m *Message) AppendPayload(dst []byte) []byte {
	if m.Type == "" {
		dst = append(dst, `,"data":`...)
		if m.CBOR {
			return cbor.AppendJSON(dst, m.Data)
		}
		return append(dst, m.Data...)
	}
	dst = cbor.AppendJSONString(append(dst, `,"type":`...), m.Type)
	if m.IsText() {
		return cbor.AppendJSONString(append(dst, `,"text":`...), m.Data)
	}
	dst = append(dst, `,"base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, m.Data)
	return append(dst, '"')
}

// appendGap appends g as one NDJSON line.
func appendGap(dst []byte, g *Gap) []byte {
	dst = append(dst, `{"gap":{"topic":"`...)
	dst = append(dst, g.Topic...)
	dst = append(dst, `","reason":`...)
	dst = cbor.AppendJSONString(dst, string(g.Reason)) // an unknown reason may be any string
	dst = append(dst, `,"after":"`...)
	dst = g.After.Append(dst)
	dst = append(dst, `","position":"`...)
	dst = append(g.Position.Append(dst), '"')
	if g.Detail != "" {
		dst = cbor.AppendJSONString(append(dst, `,"detail":`...), g.Detail)
	}
	return append(dst, "}}\n"...)
}

func appendNamed(dst []byte, name string, value any) []byte {
	dst = append(dst, `{"`...)
	dst = append(dst, name...)
	dst = append(dst, `":`...)
	dst = appendValue(dst, name, value)
	return append(dst, "}\n"...)
}

// appendValue appends a value that is rare, so that speed does not matter.
func appendValue(dst []byte, name string, value any) []byte {
	b, err := json.Marshal(value)
	if err != nil {
		panic("BUG: " + name + " does not marshal: " + err.Error())
	}
	return append(dst, b...)
}

// appendReply appends r as one NDJSON line, without empty members.
func appendReply(dst []byte, r *Reply) []byte {
	dst = append(dst, `{"reply":{`...)
	from := len(dst)
	member := func(name string) {
		if len(dst) > from {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), name...), `":`...)
	}
	if r.Ref != nil {
		member("ref")
		dst = strconv.AppendUint(dst, *r.Ref, 10)
	}
	if len(r.Positions) > 0 {
		member("positions")
		separator := byte('[')
		for _, p := range r.Positions {
			dst = append(p.Append(append(dst, separator, '"')), '"')
			separator = ','
		}
		dst = append(dst, ']')
	}
	if r.Position != nil {
		member("position")
		dst = append(r.Position.Append(append(dst, '"')), '"')
	}
	if r.Time != 0 {
		member("time")
		dst = strconv.AppendInt(dst, r.Time, 10)
	}
	if r.ExpiresMS != 0 {
		member("expires_ms")
		dst = strconv.AppendInt(dst, r.ExpiresMS, 10)
	}
	if r.Unfollowed != 0 {
		member("unfollowed")
		dst = strconv.AppendInt(dst, int64(r.Unfollowed), 10)
	}
	if r.Problem != nil {
		member("problem")
		dst = appendValue(dst, "reply", r.Problem)
	}
	return append(dst, "}}\n"...)
}

// jsonFrame has every field of every frame. Unknown fields are ignored, because newer
// daemons may send more.
type jsonFrame struct {
	Position *Position       `json:"position"`
	Time     int64           `json:"time"`
	ID       string          `json:"id"`
	Key      string          `json:"key"`
	By       string          `json:"by"`
	Claims   json.RawMessage `json:"claims"`
	Type     string          `json:"type"`
	Data     json.RawMessage `json:"data"`
	Text     *string         `json:"text"`
	Base64   *[]byte         `json:"base64"`
	Content
}

// ParseLine reads one NDJSON frame, with or without its newline. An object that is no known frame
// gives the zero Content, as a heartbeat does: PROTOCOL.md, Frames. The result shares no memory
// with line.
func ParseLine(line []byte) (Content, error) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return Content{}, nil
	}
	var f jsonFrame
	var c Content
	err := errNoObject // encoding/json takes null for an object
	if line[0] == '{' {
		err = unmarshal(line, &f)
	}
	if err == nil {
		c, err = f.content()
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return Content{}, fmt.Errorf("frame %s: %w", Quote(line), err)
	}
	return c, nil
}

var errNoObject = errors.New("must be an object")

func (f *jsonFrame) content() (Content, error) {
	kinds := 0
	for _, present := range []bool{f.Position != nil, f.Gap != nil, f.Moved != nil, f.Hello != nil, f.End != nil, f.Reply != nil, f.Done != nil} {
		if present {
			kinds++
		}
	}
	if kinds > 1 {
		return Content{}, errors.New("must be only one of message, gap, moved, hello, end, reply and done")
	}
	if f.Position == nil {
		return f.Content, nil
	}
	m := &Message{Position: *f.Position, Time: f.Time, Type: f.Type, ID: f.ID, Key: f.Key, By: f.By}
	m.setClaims(f.Claims)
	switch {
	case f.Data != nil && f.Type == "" && f.Text == nil && f.Base64 == nil:
		m.Data = f.Data
	case f.Text != nil && f.Type != "" && f.Data == nil && f.Base64 == nil:
		m.Data = []byte(*f.Text)
	case f.Base64 != nil && f.Type != "" && f.Data == nil && f.Text == nil:
		m.Data = *f.Base64
	default:
		return Content{}, errors.New("a message must have data, or a type and either text or base64")
	}
	return Content{Message: m}, nil
}

// setClaims sets the claims if the JSON value is an object. A client ignores any other.
func (m *Message) setClaims(value []byte) {
	if bytes.HasPrefix(value, []byte("{")) {
		m.Claims = value
	}
}

// MaxFrameBytes is the largest frame that a decoder accepts. It fits the largest message
// that can be configured (8 MiB), written with escapes.
const MaxFrameBytes = cbor.MaxItemBytes

// A Decoder reads NDJSON frames. Only one goroutine may use it.
type Decoder struct {
	lines *bufio.Reader
	line  []byte // the beginning of a line that is longer than the reader's buffer
}

// NewDecoder returns a Decoder that reads from r. It may read ahead.
func NewDecoder(r io.Reader) *Decoder {
	return &Decoder{lines: bufio.NewReader(r)}
}

// Next returns the content of the next frame; the zero Content is a heartbeat, or a frame of
// an unknown kind. At the end it returns io.EOF, or io.ErrUnexpectedEOF if the last line has
// no newline.
func (d *Decoder) Next() (Content, error) {
	d.line = d.line[:0]
	for {
		part, err := d.lines.ReadSlice('\n')
		d.line = append(d.line, part...)
		switch {
		case err == nil:
			return ParseLine(d.line)
		case len(d.line) > MaxFrameBytes:
			return Content{}, fmt.Errorf("frame %s is longer than %d bytes", Quote(d.line), MaxFrameBytes)
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(d.line) > 0:
			return Content{}, io.ErrUnexpectedEOF
		default:
			return Content{}, err
		}
	}
}
