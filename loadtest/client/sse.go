package client

import (
	"bytes"
	"fmt"
)

// An eventSplitter reads an event stream (HTML, section 9.2.6): a push is the
// data of an event without a type, or of type message, as EventSource's onmessage
// has it. It is stricter than a browser: fields that the standard does not know
// are an error, and so is a lone carriage return as a line's end.
type eventSplitter struct {
	carry []byte
	cache *eventCache
}

// An eventCache keeps the last event that was read. A broadcast sends one event
// to everyone.
type eventCache struct {
	raw  []byte // up to and including the empty line
	data []byte
	ok   bool // it is a push
	// check judges events, all of which with data are pushes; nil: only messages are.
	check func(e event) error
}

// An event is what one says of itself.
type event struct {
	name string
	id   string
	data []byte // the lines of data, if there are any
	some bool   // there are
}

func (s *eventSplitter) feed(b []byte, sink func([]byte) error) error {
	if len(s.carry) > 0 {
		all, err := collectPush(s.carry, b)
		if err != nil {
			return err
		}
		s.carry, b = nil, all
	}
	for len(b) > 0 {
		// Fast path: the very bytes of the last event. They end in its empty line.
		n := 0
		if len(s.cache.raw) > 0 && bytes.HasPrefix(b, s.cache.raw) {
			n = len(s.cache.raw)
		} else if n = eventEnd(b); n == 0 {
			var err error
			s.carry, err = collectPush(nil, b)
			return err
		} else if err := s.cache.parse(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		if s.cache.ok {
			if err := sink(s.cache.data); err != nil {
				return err
			}
		}
	}
	return nil
}

// eventEnd returns how long the first event of b is, its empty line included; 0
// if it is not all there.
func eventEnd(b []byte) int {
	for begin := 0; ; {
		i := bytes.IndexByte(b[begin:], '\n')
		if i < 0 {
			return 0
		}
		line := b[begin : begin+i]
		begin += i + 1
		if len(line) == 0 || len(line) == 1 && line[0] == '\r' {
			return begin
		}
	}
}

// parse reads one whole event.
func (c *eventCache) parse(raw []byte) error {
	c.raw = c.raw[:0]
	e := event{data: c.data[:0]}
	for line := range bytes.SplitSeq(raw, []byte("\n")) {
		if err := e.add(bytes.TrimSuffix(line, []byte("\r"))); err != nil {
			return fmt.Errorf("event %.200q: %w", raw, err)
		}
	}
	c.data, c.ok = e.data, e.some && (c.check != nil || e.name == "" || e.name == "message")
	if c.ok && c.check != nil {
		if err := c.check(e); err != nil {
			return err
		}
	}
	c.raw = append(c.raw, raw...)
	return nil
}

// add takes one of an event's lines.
func (e *event) add(line []byte) error {
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "": // an empty line, or a comment
	case "data":
		if e.some {
			e.data = append(e.data, '\n')
		}
		e.data, e.some = append(e.data, value...), true
	case "event":
		e.name = string(value)
	case "id":
		e.id = string(value)
	case "retry":
	default:
		return fmt.Errorf("unknown field %.40q", field)
	}
	return nil
}

// An sseKit is what all SSE clients of a Kit share.
type sseKit struct {
	kit    *Kit
	events eventCache
}

func (k *sseKit) newClient(number int, topic string, request []byte, d decoder, silent bool, events Events) Machine {
	return &streamer{
		listener:  listener{number: number, topic: topic, events: events, decoder: d, kit: k.kit},
		request:   request,
		mediaType: "text/event-stream",
		silent:    silent,
		splitter:  &eventSplitter{cache: &k.events},
		parser:    Parser{heads: &k.kit.streams},
	}
}
