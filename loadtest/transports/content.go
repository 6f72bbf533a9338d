package transports

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A content reads what a transport carries, in pieces of any size: the messages of
// a test by their form, and everything else by other. It belongs to the client's
// goroutine.
type content struct {
	at    wire.Position // the topic and epoch of the test
	form  form
	tally *tally
	// other reads the frame that the bytes begin with, where it has not the form of a
	// message of the test, and returns its length; 0 if it is not all there.
	other func(c *content, b []byte) (int, error)

	hello bool // has come
	carry carry
}

// feed reads b, which follows all that was fed before.
func (c *content) feed(b []byte) error { return c.carry.feed(b, c.take) }

// ended returns an error if what was fed ends within a frame.
func (c *content) ended() error {
	if len(c.carry) > 0 {
		return fmt.Errorf("the answer ends within frame %.80q", c.carry)
	}
	return nil
}

// take reads the frame that b begins with.
func (c *content) take(b []byte) (int, error) {
	m, n := c.form.match(b)
	switch {
	case n > 0:
		return n, c.tally.message(m)
	case n == incomplete:
		return 0, nil
	}
	return c.other(c, b)
}

// newContent returns what reads a transport that carries such frames.
func newContent(e encoding, at wire.Position, t *tally) *content {
	switch e {
	case events:
		return &content{at: at, form: eventForm(at), tally: t, other: (*content).event}
	case items:
		return &content{at: at, form: itemForm(at), tally: t, other: (*content).item}
	}
	return &content{at: at, form: lineForm(at), tally: t, other: (*content).line}
}

// An encoding is how frames stand in what a transport carries.
type encoding uint8

const (
	lines encoding = iota
	events
	items
)

// line reads a line as every client does.
func (c *content) line(b []byte) (int, error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return 0, nil
	}
	return end + 1, c.text(b[:end])
}

func (c *content) text(line []byte) error {
	f, err := wire.ParseLine(line)
	if err != nil {
		return err
	}
	return c.frame(f)
}

// item reads an item of a CBOR sequence as every client does.
func (c *content) item(b []byte) (int, error) {
	f, n, err := wire.ParseItem(b)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return n, c.frame(f)
}

func (c *content) frame(f wire.Content) error {
	switch {
	case f.Message != nil:
		return c.message(f.Message)
	case f.Gap != nil:
		c.tally.gaps++
		return fmt.Errorf("%w: a gap (%s): %v", errLost, f.Gap.Reason, f.Gap)
	case f.Hello != nil:
		c.hello = true
	case f.End != nil:
		return fmt.Errorf("the server ended the answer: %w", f.End)
	}
	return nil
}

// message takes one that has more, or stands otherwise, than the form.
func (c *content) message(m *wire.Message) error {
	before, after := loadtest.ShortStrings()
	b, ok := bytes.CutPrefix(m.Data, []byte(before))
	n, length := readDigits(b, loadtest.SequenceDigits)
	if m.Position.Topic != c.at.Topic || m.Position.Epoch != c.at.Epoch {
		return fmt.Errorf("message %s is of another topic or epoch than %s", m.Position, c.at)
	}
	if !ok || length <= 0 || string(b[length:]) != after {
		return fmt.Errorf("message %s has another payload than was published: %.200q", m.Position, m.Data)
	}
	return c.tally.message(seen{m.Position.Offset, uint64(m.Time), int(n)})
}

// event reads an event of an event stream (HTML, section 9.2.6).
func (c *content) event(b []byte) (int, error) {
	end := bytes.Index(b, []byte("\n\n"))
	if end < 0 {
		return 0, nil
	}
	var kind string
	var payload []byte
	for line := range bytes.SplitSeq(b[:end], []byte("\n")) {
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			payload = value
		case "event":
			kind = string(value)
		case "", "id", "retry":
		default:
			return 0, fmt.Errorf("event %.200q has an unknown field", b[:end])
		}
	}
	if payload == nil && kind == "" {
		return end + 2, nil // a heartbeat
	}
	return end + 2, c.text(payload)
}
