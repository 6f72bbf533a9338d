package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Events are told what happens to clients, by number, on the loop's goroutine.
type Events interface {
	// Ready: the subscription is made, and delivery begins after the position.
	Ready(client int, begin wire.Position)
	// Message: f is valid until the method returns. An error ends the connection.
	Message(client int, f *Frame, now time.Duration) error
	// Gap: the server announced loss.
	Gap(client int, g *wire.Gap)
	// Closed: the connection ended, and no more comes of this client.
	Closed(client int, err error)
}

// A Subscriber is one client with one topic that matters on one connection: it opens a
// session (unless stateless), then polls, acking the frames it has counted.
//
// It follows the protocol to the letter and never recovers: whatever would make
// a real client reconnect ends it with an error, because the test must know.
type Subscriber struct {
	Number int    // of the client, from 0; immutable
	Topic  string // immutable

	kit    *Kit
	events Events

	parser  Parser
	scanner frameReader
	now     time.Duration // when the bytes being read arrived

	session  string        // empty: not opened yet, or stateless
	position wire.Position // of the last frame had
	frames   uint64        // messages and gaps had
	ready    bool

	head   Head   // of the answer being read
	body   []byte // of an answer that is read as a whole
	answer answerKind
	idle   bool // no request is on its way
}

type answerKind uint8

const (
	opening answerKind = iota
	frames
	refusal
)

// NewSubscriber returns a subscriber that has yet to connect.
func (k *Kit) NewSubscriber(number int, topic string, events Events) *Subscriber {
	return &Subscriber{
		Number:   number,
		Topic:    topic,
		kit:      k,
		events:   events,
		parser:   Parser{heads: &k.polls},
		scanner:  k.newScanner(),
		position: wire.Position{Topic: topic},
	}
}

func (k *Kit) newScanner() frameReader {
	if k.format == CBOR {
		return &itemScanner{items: &k.items}
	}
	return &Scanner{lines: &k.lines}
}

// Connected returns the first request. Like what Receive returns, it is valid
// until the next call of a method of anything of the same Kit.
func (s *Subscriber) Connected(time.Duration) []byte { return s.request() }

// Receive takes the bytes that arrived at now and returns what to send. After an
// error the connection must be closed.
func (s *Subscriber) Receive(now time.Duration, b []byte) ([]byte, error) {
	s.now = now
	if err := s.parser.Feed(b, s); err != nil {
		return nil, err
	}
	if !s.idle {
		return nil, nil
	}
	// Only now: bytes beyond the answer were answers that nothing asked for.
	return s.request(), nil
}

// Closed says that the connection ended for the given reason.
func (s *Subscriber) Closed(_ time.Duration, err error) { s.events.Closed(s.Number, err) }

func (s *Subscriber) request() []byte {
	s.idle = false
	s.parser.Expect()
	switch {
	case s.kit.stateless:
		return s.kit.statelessPoll(s.position)
	case s.session == "":
		return s.kit.openRequest(s.Topic, s.Number)
	default:
		return s.kit.sessionPoll(s.session, s.frames)
	}
}

// Head is part of Receiver.
func (s *Subscriber) Head(h Head) error {
	s.head = h
	s.body = s.body[:0]
	isOpening := s.session == "" && !s.kit.stateless
	switch {
	case isOpening && h.Status == http.StatusCreated:
		s.answer = opening
	case !isOpening && h.Status == http.StatusOK:
		s.answer = frames
		return checkFrames(h, s.kit.format.contentType())
	default:
		s.answer = refusal
	}
	return nil
}

func checkFrames(h Head, contentType string) error {
	mediaType, _, _ := strings.Cut(h.ContentType, ";")
	if mediaType != contentType && (h.Chunked || h.Length > 0) {
		return fmt.Errorf("poll answered with content type %q, not %s", h.ContentType, contentType)
	}
	return nil
}

// Body is part of Receiver.
func (s *Subscriber) Body(part []byte) error {
	if s.answer == frames {
		return s.scanner.Feed(part, s)
	}
	var err error
	s.body, err = collect(s.body, part)
	return err
}

// End is part of Receiver.
func (s *Subscriber) End() error {
	s.idle = true
	switch s.answer {
	case opening:
		return s.opened()
	case frames:
		return s.polled()
	default:
		return refused("subscriber", s.head, s.body)
	}
}

func (s *Subscriber) opened() error {
	var o wire.SessionOpened
	if err := json.Unmarshal(s.body, &o); err != nil {
		return fmt.Errorf("opened session %.200q: %w", s.body, err)
	}
	begin, ok := s.kit.own(s.Topic, o.Positions)
	if o.Session == "" || !ok || !o.Ack {
		return fmt.Errorf("opened session %.200q is not the requested one", s.body)
	}
	s.session = o.Session
	s.body = nil
	s.begin(begin)
	return nil
}

func (s *Subscriber) polled() error {
	if s.kit.mode == Stream {
		return errors.New("the stream ended without a reason")
	}
	return s.scanner.Finish()
}

// Frame is part of FrameSink.
func (s *Subscriber) Frame(f *Frame) error {
	switch f.Kind {
	case Message:
		return s.message(f)
	case Gap:
		return s.gap(f.Gap)
	case Hello:
		return s.hello(f.Hello)
	case End:
		return fmt.Errorf("the server ended the answer: %w", plainly(f.End))
	case Reply:
		return errUnasked
	case Moved:
		return errMoved
	case Heartbeat:
	}
	return nil
}

func (s *Subscriber) message(f *Frame) error {
	if err := s.has(f.Position); err != nil {
		return err
	}
	return s.events.Message(s.Number, f, s.now)
}

func (s *Subscriber) gap(g *wire.Gap) error {
	if err := s.has(g.Position); err != nil {
		return err
	}
	s.events.Gap(s.Number, g)
	return nil
}

// has counts a frame and moves on to its position.
func (s *Subscriber) has(p wire.Position) error {
	switch {
	case p.Topic != s.Topic:
		return fmt.Errorf("a frame of topic %q arrived at a subscriber of %q", p.Topic, s.Topic)
	case !s.ready:
		return fmt.Errorf("frame %q arrived before hello", p)
	}
	s.position = p
	s.frames++
	return nil
}

func (s *Subscriber) hello(h *wire.Hello) error {
	begin, ok := s.kit.own(s.Topic, h.Positions)
	if !ok {
		return fmt.Errorf("hello has positions %v instead of one of topic %q", h.Positions, s.Topic)
	}
	if !s.ready {
		s.begin(begin)
	}
	return nil
}

func (s *Subscriber) begin(p wire.Position) {
	s.position = p
	s.ready = true
	s.events.Ready(s.Number, p)
}
