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
	ok   bool // it is a message
}

func (s *eventSplitter) feed(b []byte, sink func([]byte) error) error {
	if len(s.carry) > 0 {
		all, err := collect(s.carry, b)
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
			s.carry, err = collect(nil, b)
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
	c.data, c.ok = nil, false
	message, lines := true, 0
	for line := range bytes.SplitSeq(raw, []byte("\n")) {
		line = bytes.TrimSuffix(line, []byte("\r"))
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "": // an empty line, or a comment
		case "data":
			if lines++; lines > 1 {
				c.data = append(c.data, '\n')
			}
			c.data = append(c.data, value...)
		case "event":
			message = len(value) == 0 || string(value) == "message"
		case "id", "retry":
		default:
			return fmt.Errorf("event %.200q: unknown field %.40q", raw, field)
		}
	}
	c.ok = message && lines > 0
	c.raw = append(c.raw, raw...)
	return nil
}

// An sseKit is what all SSE clients of a Kit share.
type sseKit struct {
	kit    *Kit
	events eventCache
}

func (k *sseKit) newClient(number int, topic string, request []byte, d decoder, silent bool, events Events) Machine {
	return &streamer{
		listener:  listener{number: number, topic: topic, events: events, decoder: d},
		request:   request,
		mediaType: "text/event-stream",
		silent:    silent,
		splitter:  &eventSplitter{cache: &k.events},
		parser:    Parser{heads: &k.kit.streams},
	}
}
