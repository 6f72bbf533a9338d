package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// noPosition is that of a server that has none.
var noPosition wire.Position

// A push is what a server says to a subscriber at one time.
type push struct {
	kind  pushKind
	topic string // of a message; empty if it need not be said
	data  []byte // of a message

	// frame is what pubsubd says, in place of the above; nil: another server.
	frame *Frame
}

type pushKind uint8

const (
	pushIgnored pushKind = iota // a heartbeat
	pushReady                   // the subscription is made
	pushMessage
)

// A decoder reads pushes, one at a time; what it returns is valid until the next.
type decoder interface {
	decode(b []byte) (push, error)
}

// rawDecoder is for servers that send a message as it was published.
type rawDecoder struct{}

func (rawDecoder) decode(b []byte) (push, error) { return push{kind: pushMessage, data: b}, nil }

// A splitter finds pushes in an answer without end.
type splitter interface {
	// feed calls sink with each push in b, which follows all that was fed before.
	feed(b []byte, sink func([]byte) error) error
}

// A listener is a client that has pushes: the end of every dialect that is not
// polled.
type listener struct {
	number  int
	topic   string
	events  Events
	decoder decoder
	ready   bool
	message Frame

	kit       *Kit       // of pubsubd's
	publisher *Publisher // publishes on this connection; nil: nobody does
	commands  []byte     // to be sent, that it made; see socket
}

// begin says that the subscription is made, and delivers what comes after p.
func (l *listener) begin(p wire.Position) {
	if !l.ready {
		l.ready = true
		l.events.Ready(l.number, p)
	}
}

func (l *listener) take(b []byte, now time.Duration) error {
	p, err := l.decoder.decode(b)
	if err != nil {
		return fmt.Errorf("push %.200q: %w", b, err)
	}
	if p.frame != nil {
		return l.frame(p.frame, now)
	}
	switch p.kind {
	case pushReady:
		l.begin(noPosition)
	case pushMessage:
		if !l.ready || p.topic != "" && p.topic != l.topic {
			return fmt.Errorf("push %.200q is not for a subscriber of %q, or comes before the subscription", b, l.topic)
		}
		l.message = Frame{Kind: Message, Data: p.data}
		return l.events.Message(l.number, &l.message, now)
	case pushIgnored:
	}
	return nil
}

// A streamer is a client of one request whose answer does not end.
type streamer struct {
	listener
	request   []byte
	mediaType string // that the answer must have; empty: any
	silent    bool   // the head is all that is said of the subscription
	splitter  splitter

	parser Parser
	now    time.Duration
	head   Head
	body   []byte             // of a refusal
	sink   func([]byte) error // push, made once
}

// Connected is part of Machine.
func (s *streamer) Connected(time.Duration) []byte {
	s.parser.Expect()
	s.sink = s.push
	return s.request
}

// Receive is part of Machine.
func (s *streamer) Receive(now time.Duration, b []byte) ([]byte, error) {
	s.now = now
	return nil, s.parser.Feed(b, s)
}

// Closed is part of Machine.
func (s *streamer) Closed(_ time.Duration, err error) {
	if s.head.Status != 0 && s.head.Status != http.StatusOK {
		err = errors.Join(refused("subscribe", s.head, s.body), err)
	}
	s.events.Closed(s.number, err)
}

// Head is part of Receiver.
func (s *streamer) Head(h Head) error {
	s.head = h
	if h.Status != http.StatusOK {
		return nil
	}
	mediaType, _, _ := strings.Cut(h.ContentType, ";")
	if s.mediaType != "" && mediaType != s.mediaType {
		return fmt.Errorf("stream has content type %q, not %s", h.ContentType, s.mediaType)
	}
	if s.silent {
		s.begin(noPosition)
	}
	return nil
}

// Body is part of Receiver.
func (s *streamer) Body(part []byte) error {
	if s.head.Status == http.StatusOK {
		return s.splitter.feed(part, s.sink)
	}
	var err error
	s.body, err = collect(s.body, part)
	return err
}

func (s *streamer) push(b []byte) error { return s.take(b, s.now) }

// End is part of Receiver.
func (s *streamer) End() error {
	if s.head.Status != http.StatusOK {
		return refused("subscribe", s.head, s.body)
	}
	return fmt.Errorf("the stream ended: %w", io.ErrUnexpectedEOF)
}

// lineSplitter is for streams with a push on each line; empty ones are none.
type lineSplitter struct{ carry []byte }

func (s *lineSplitter) feed(b []byte, sink func([]byte) error) error {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			var err error
			s.carry, err = collectPush(s.carry, b)
			return err
		}
		line := b[:i]
		b = b[i+1:]
		if len(s.carry) > 0 {
			line = append(s.carry, line...)
			s.carry = line[:0]
		}
		if len(line) == 0 {
			continue
		}
		if err := sink(line); err != nil {
			return err
		}
	}
}
