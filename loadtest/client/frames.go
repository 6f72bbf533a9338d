package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Frame is what one line says: like wire.Content, but of a message only what a
// load test looks at, and without copies.
type Frame struct {
	Kind     Kind
	Position wire.Position // of a message
	Data     []byte        // of a message; valid until the sink returns, not to be changed
	Gap      *wire.Gap
	Hello    *wire.Hello
	Moved    *wire.Moved
	End      *wire.Problem
	Reply    *wire.Reply
}

// Kind is what a frame is.
type Kind uint8

// The kinds of frames.
const (
	Heartbeat Kind = iota
	Message
	Gap
	Moved
	Hello
	End
	Reply
)

// A FrameSink takes frames in order. An error stops the Scanner for good.
type FrameSink interface {
	Frame(f *Frame) error
}

// A Scanner reads NDJSON frames from bytes in pieces of any size, and sees
// exactly what wire.Decoder sees in the same bytes.
type Scanner struct {
	lines *lineCache
	carry []byte // the beginning of a line whose end has not come
}

// Feed reads b, which follows all that was fed before.
func (s *Scanner) Feed(b []byte, sink FrameSink) error {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return s.keep(b)
		}
		line := b[:i]
		if len(s.carry) > 0 {
			s.carry = append(s.carry, line...)
			line = s.carry
		}
		f, err := s.lines.parse(line)
		if err != nil {
			return err
		}
		s.carry = s.carry[:0]
		if err := sink.Frame(f); err != nil {
			return err
		}
		b = b[i+1:]
	}
}

func (s *Scanner) keep(b []byte) error {
	s.carry = append(s.carry, b...)
	if len(s.carry) > wire.MaxFrameBytes {
		return fmt.Errorf("frame %.80q is longer than %d bytes", s.carry, wire.MaxFrameBytes)
	}
	return nil
}

// Finish says that the answer is over. A line without its newline was cut off.
func (s *Scanner) Finish() error {
	if len(s.carry) > 0 {
		return fmt.Errorf("the answer ends within frame %.80q: %w", s.carry, io.ErrUnexpectedEOF)
	}
	return nil
}

// A lineCache keeps the last line that was read and what it says. A broadcast
// sends one line to everyone.
type lineCache struct {
	line  []byte
	frame Frame
}

func (c *lineCache) parse(line []byte) (*Frame, error) {
	// Fast path: the very bytes of the last line.
	if bytes.Equal(line, c.line) && len(line) > 0 {
		return &c.frame, nil
	}
	c.line = append(c.line[:0], line...)
	f, ok := leanMessage(c.line)
	if !ok {
		var err error
		if f, err = fullFrame(c.line); err != nil {
			c.line = c.line[:0]
			return nil, err
		}
	}
	c.frame = f
	return &c.frame, nil
}

// fullFrame reads a line as every client does.
func fullFrame(line []byte) (Frame, error) {
	c, err := wire.ParseLine(line)
	if err != nil {
		return Frame{}, err
	}
	return frameOf(c), nil
}

func frameOf(c wire.Content) Frame {
	switch {
	case c.Message != nil:
		return Frame{Kind: Message, Position: c.Message.Position, Data: c.Message.Data}
	case c.Gap != nil:
		return Frame{Kind: Gap, Gap: c.Gap}
	case c.Moved != nil:
		return Frame{Kind: Moved, Moved: c.Moved}
	case c.Hello != nil:
		return Frame{Kind: Hello, Hello: c.Hello}
	case c.End != nil:
		return Frame{Kind: End, End: c.End}
	case c.Reply != nil:
		return Frame{Kind: Reply, Reply: c.Reply}
	}
	return Frame{Kind: Heartbeat}
}

// maxLeanBytes keeps leanMessage far from encoding/json's bound on nesting,
// which it would not see.
const maxLeanBytes = 4 << 10

// leanMessage reads the two forms that a load test's own messages have,
//
//	{"position":"T@E:N","time":DIGITS,"data":JSON}
//	{"position":"T@E:N","time":DIGITS,"type":"PLAIN","text":"PLAIN"}
//
// PLAIN being printable ASCII without quotes and backslashes. Anything else,
// right or wrong, is not its to judge.
func leanMessage(line []byte) (Frame, bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"position":"`))
	if !ok || len(line) > maxLeanBytes {
		return Frame{}, false
	}
	position, rest, ok := plain(rest)
	if !ok {
		return Frame{}, false
	}
	p, err := wire.ParsePosition(string(position))
	if err != nil {
		return Frame{}, false
	}
	rest, ok = cutTime(rest)
	if !ok {
		return Frame{}, false
	}
	data, ok := leanPayload(rest)
	return Frame{Kind: Message, Position: p, Data: data}, ok
}

// cutTime takes `,"time":DIGITS,` off the front, of digits that are an int64.
func cutTime(b []byte) ([]byte, bool) {
	b, ok := bytes.CutPrefix(b, []byte(`,"time":`))
	n := 0
	for n < len(b) && '0' <= b[n] && b[n] <= '9' {
		n++
	}
	if !ok || n == 0 || n > 18 || n > 1 && b[0] == '0' {
		return nil, false
	}
	return bytes.CutPrefix(b[n:], []byte(","))
}

func leanPayload(b []byte) ([]byte, bool) {
	b, ok := bytes.CutSuffix(b, []byte("}"))
	if !ok {
		return nil, false
	}
	if data, ok := bytes.CutPrefix(b, []byte(`"data":`)); ok {
		return data, len(data) > 0 && !isSpace(data[0]) && !isSpace(data[len(data)-1]) && json.Valid(data)
	}
	b, ok = bytes.CutPrefix(b, []byte(`"type":"`))
	if !ok {
		return nil, false
	}
	mediaType, b, ok := plain(b)
	if !ok || len(mediaType) == 0 {
		return nil, false
	}
	b, ok = bytes.CutPrefix(b, []byte(`,"text":"`))
	if !ok {
		return nil, false
	}
	text, b, ok := plain(b)
	return text, ok && len(b) == 0
}

// plain returns the bytes up to the quote, and those after it, if they are
// printable ASCII without backslashes: a JSON string that stands for itself.
func plain(b []byte) (text, rest []byte, ok bool) {
	for i, c := range b {
		switch {
		case c == '"':
			return b[:i], b[i+1:], true
		case c < ' ' || c > '~' || c == '\\':
			return nil, nil, false
		}
	}
	return nil, nil, false
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }
