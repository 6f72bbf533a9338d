package pubsub

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An eventDecoder reads frames from a stream of server-sent events, as the standard
// has them (HTML, 9.2.6): an event is lines of "field: value" up to an empty line,
// and its data is a frame as in NDJSON. It is for one goroutine.
type eventDecoder struct {
	lines *bufio.Reader
	most  int  // bytes of a line, and of an event
	skip  bool // a line feed, if the next byte is one: the last line ended in a carriage return

	line []byte
	event
}

// An event is what its lines so far come to.
type event struct {
	name  string
	data  []byte
	retry int64 // milliseconds
	began bool  // there are lines
}

func newEventDecoder(r io.Reader) *eventDecoder {
	return &eventDecoder{lines: bufio.NewReader(r), most: wire.MaxFrameBytes}
}

// Next returns the next event's content; the zero Content for one that says nothing,
// or nothing that is known.
func (d *eventDecoder) Next() (wire.Content, error) {
	d.event = event{data: d.data[:0]}
	for {
		line, err := d.next()
		switch {
		case errors.Is(err, io.EOF) && (d.began || len(line) > 0):
			return wire.Content{}, io.ErrUnexpectedEOF
		case err != nil:
			return wire.Content{}, err
		case len(line) == 0:
			return d.content()
		}
		d.take(line)
		if len(d.data) > d.most {
			return wire.Content{}, errLongEvent
		}
	}
}

var errLongEvent = fmt.Errorf("an event is longer than %d bytes", wire.MaxFrameBytes)

// next returns the next line, without what ends it: a line feed, a carriage return,
// or both. With an error it returns what came before.
func (d *eventDecoder) next() ([]byte, error) {
	d.line = d.line[:0]
	for {
		c, err := d.lines.ReadByte()
		if err != nil {
			return d.line, err
		}
		skip := d.skip && c == '\n'
		d.skip = c == '\r'
		switch {
		case skip:
		case c == '\n', c == '\r':
			return d.line, nil
		case len(d.line) > d.most:
			return nil, errLongEvent
		default:
			d.line = append(d.line, c)
		}
	}
}

// take adds a line to the event. Comments and unknown fields say nothing.
func (d *eventDecoder) take(line []byte) {
	d.began = true
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "data":
		d.data = append(append(d.data, value...), '\n')
	case "event":
		d.name = string(value)
	case "retry":
		if ms, err := strconv.ParseInt(string(value), 10, 64); err == nil && ms >= 0 {
			d.retry = ms
		}
	}
}

// content returns what a whole event says. An end may leave it to the event when to
// come again.
func (e *event) content() (wire.Content, error) {
	switch e.name {
	case "", "message", "gap", "moved", "hello", "end":
	default:
		return wire.Content{}, nil
	}
	content, err := wire.ParseLine(e.data)
	if end := content.End; end != nil && end.RetryAfterMS == 0 {
		end.RetryAfterMS = e.retry
	}
	return content, err
}
