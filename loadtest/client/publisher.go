package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// PublishEvents are told what happens to Publishers, on the loop's goroutine.
type PublishEvents interface {
	// Free: the connection is there and has nothing to do, at first or after an
	// answer. What it returns is sent.
	Free(p *Publisher) []byte
	// Answered: the publish was taken, and its message has the given position, or it
	// was refused. Either Free or Closed follows.
	Answered(p *Publisher, position wire.Position, refusal error, now time.Duration)
	// Closed: the connection ended.
	Closed(p *Publisher, err error)
}

// A Publisher is one connection that publishes, one message at a time.
type Publisher struct {
	kit    *Kit
	events PublishEvents

	parser   Parser
	head     Head
	body     []byte
	busy     bool          // a publish is on its way or unanswered
	topic    string        // of the last publish
	position wire.Position // that the last answer gave it
}

// errClosing ends a connection that the server, having refused, will not keep.
var errClosing = errors.New("the server announced that it closes the connection")

// NewPublisher returns a publisher that has yet to connect.
func (k *Kit) NewPublisher(events PublishEvents) *Publisher {
	return &Publisher{kit: k, events: events, parser: Parser{heads: &k.answers}}
}

// Busy reports whether a publish is unanswered.
func (p *Publisher) Busy() bool { return p.busy }

// A PublishForm is the unchanging part of publishes to one topic.
type PublishForm struct{ topic, head string }

// NewPublishForm prepares publishes of the given content type to topic.
func NewPublishForm(authority, topic, contentType string) PublishForm {
	return PublishForm{topic: topic, head: "POST /v1/topics/" + topic + "/messages HTTP/1.1\r\n" +
		browserHeaders(authority) + postHeaders(authority, contentType)}
}

// Publish returns the request that publishes payload. It must not be busy. The
// bytes are valid until the next call of a method of anything of the same Kit.
func (p *Publisher) Publish(form PublishForm, payload []byte) []byte {
	if p.busy {
		panic("BUG: a publish on a connection that has one unanswered")
	}
	p.busy = true
	p.topic = form.topic
	p.parser.Expect()
	return p.kit.withBody(form.head, payload)
}

// Connected returns what the events want to send first.
func (p *Publisher) Connected(time.Duration) []byte { return p.events.Free(p) }

// Receive takes the bytes that arrived at now and returns what to send. After an
// error the connection must be closed.
func (p *Publisher) Receive(now time.Duration, b []byte) ([]byte, error) {
	wasBusy := p.busy
	err := p.parser.Feed(b, p)
	if !wasBusy || p.busy {
		return nil, err
	}
	// An answer that has ended counts, whatever is wrong with what follows it.
	p.events.Answered(p, p.position, p.refusal(), now)
	if err == nil && p.head.Closes {
		err = errClosing
	}
	if err != nil {
		return nil, err
	}
	return p.events.Free(p), nil
}

// Closed says that the connection ended for the given reason.
func (p *Publisher) Closed(_ time.Duration, err error) {
	if p.busy {
		err = fmt.Errorf("publish unanswered: %w", err)
	}
	p.events.Closed(p, err)
}

func (p *Publisher) refusal() error {
	if p.head.Status == http.StatusOK {
		return nil
	}
	return refused("publish", p.head, p.body)
}

// Head is part of Receiver.
func (p *Publisher) Head(h Head) error {
	p.head = h
	p.body = p.body[:0]
	return nil
}

// Body is part of Receiver.
func (p *Publisher) Body(part []byte) error {
	var err error
	p.body, err = collect(p.body, part)
	return err
}

// End is part of Receiver.
func (p *Publisher) End() error {
	if p.head.Status == http.StatusOK {
		if err := p.published(); err != nil {
			return err
		}
	}
	p.busy = false
	return nil
}

// published reads the answer to a publish that was taken.
func (p *Publisher) published() error {
	var answer wire.Published
	if err := json.Unmarshal(p.body, &answer); err != nil {
		return fmt.Errorf("answer %.200q: %w", p.body, err)
	}
	if answer.Position.Topic != p.topic || answer.Position.Offset == 0 {
		return fmt.Errorf("answer %.200q is not the position of a message of topic %q", p.body, p.topic)
	}
	p.position = answer.Position
	return nil
}
