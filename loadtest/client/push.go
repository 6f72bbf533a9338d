package client

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// What pubsubd pushes over server-sent events and WebSockets are the frames that
// polls are answered with, so that positions are checked here, too.

// lineDecoder reads a frame in JSON; on a WebSocket it has its newline.
type lineDecoder struct{ kit *Kit }

func (d lineDecoder) decode(b []byte) (push, error) {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		b = b[:n-1]
	}
	f, err := d.kit.lines.parse(b)
	return push{frame: f}, err
}

// itemDecoder reads a frame in CBOR.
type itemDecoder struct{ kit *Kit }

func (d itemDecoder) decode(b []byte) (push, error) {
	f, err := d.kit.items.parse(b)
	return push{frame: f}, err
}

// frame takes one of pubsubd's.
func (l *listener) frame(f *Frame, now time.Duration) error {
	switch f.Kind {
	case Hello:
		return l.hello(f.Hello)
	case Message:
		if err := l.has(f.Position); err != nil {
			return err
		}
		return l.events.Message(l.number, f, now)
	case Gap:
		if err := l.has(f.Gap.Position); err != nil {
			return err
		}
		l.events.Gap(l.number, f.Gap)
	case End:
		return fmt.Errorf("the server ended the answer: %w", plainly(f.End))
	case Reply:
		return l.reply(f.Reply, now)
	case Moved:
		return errMoved
	case Heartbeat:
	}
	return nil
}

func (l *listener) hello(h *wire.Hello) error {
	begin, ok := l.kit.own(l.topic, h.Positions)
	if !ok || l.ready {
		return fmt.Errorf("hello has positions %v instead of one of topic %q, or arrived twice", h.Positions, l.topic)
	}
	l.begin(begin)
	return nil
}

func (l *listener) has(p wire.Position) error {
	if !l.ready || p.Topic != l.topic {
		return fmt.Errorf("frame %q is not for a subscriber of %q, or comes before hello", p, l.topic)
	}
	return nil
}

// asked is what the URL of a push asks for.
func (k *Kit) asked(path, topic string, client int) string {
	query := "?"
	for i, name := range k.topicsOf(topic, client) {
		if i > 0 {
			query += "&"
		}
		query += "topic=" + url.QueryEscape(name)
	}
	return path + query + k.format.query()
}

// eventsOf returns what makes clients of pubsubd's event streams.
func eventsOf(k *Kit, o Options) func(number int, topic string, events Events) Machine {
	shared := &sseKit{kit: k}
	shared.events.check = k.checkEvent
	return func(number int, topic string, events Events) Machine {
		request := EventSource(o.Authority, k.asked("/v1/sse", topic, number))
		return shared.newClient(number, topic, request, lineDecoder{k}, false, events)
	}
}

// eventKinds are the names of events.
var eventKinds = map[string]Kind{"": Message, "gap": Gap, "moved": Moved, "hello": Hello, "end": End}

// checkEvent holds an event to its frame: its name is the frame's kind, and its id
// is what a browser would resume from.
func (k *Kit) checkEvent(e event) error {
	f, err := k.lines.parse(e.data)
	if err != nil {
		return err
	}
	if kind, ok := eventKinds[e.name]; !ok || kind != f.Kind {
		return fmt.Errorf("event %q has data %.200q", e.name, e.data)
	}
	var at wire.Position
	switch f.Kind {
	case Message:
		at = f.Position
	case Gap:
		at = f.Gap.Position
	default:
		return nil
	}
	if !strings.HasPrefix(e.id, "~") && !slices.Contains(strings.Split(e.id, ","), at.String()) {
		return fmt.Errorf("event of %q has id %.200q", at, e.id)
	}
	return nil
}

// socketsOf returns what makes clients of pubsubd's WebSockets.
func socketsOf(k *Kit, o Options) func(number int, topic string, events Events) Machine {
	var d decoder = lineDecoder{k}
	if k.format == CBOR {
		d = itemDecoder{k}
	}
	return func(number int, topic string, events Events) Machine {
		return &socket{
			listener: listener{number: number, topic: topic, events: events, decoder: d, kit: k},
			request:  Upgrade(o.Authority, k.asked("/v1/ws", topic, number)),
			binary:   k.format == CBOR,
		}
	}
}

// errUnasked is of a reply to nothing.
var errUnasked = errors.New("a reply arrived, but no command was sent")

// errMoved is of moved positions: clients of a load test get their own messages, too.
var errMoved = errors.New("moved positions arrived, but echo=false was not asked for")
