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
	socket *socket // on which it publishes; nil: requests on a connection of its own
	ref    uint64  // of the last publish there

	parser   Parser
	head     Head
	body     []byte
	busy     bool          // a publish is on its way or unanswered
	form     PublishForm   // of the last publish
	taken    bool          // the last answer says so
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
type PublishForm struct {
	topic       string
	contentType string
	head        string // up to before the length
	// wrap appends the body that publishes payload; nil if that is the body.
	wrap func(b, payload []byte) []byte
	// answer reads a whole answer: whether the message was taken, and its position if
	// the server has such. An error is an answer that none may have.
	answer func(topic string, head Head, body []byte) (p wire.Position, taken bool, err error)
}

// NewPublishForm prepares publishes of the given content type to topic.
func NewPublishForm(authority, topic, contentType string) PublishForm {
	return PublishForm{topic: topic, contentType: contentType, answer: published, head: "POST /v1/topics/" + topic + "/messages HTTP/1.1\r\n" +
		browserHeaders(authority) + postHeaders(authority, contentType)}
}

// Publish returns the request that publishes payload. It must not be busy. The
// bytes are valid until the next call of a method of anything of the same Kit.
func (p *Publisher) Publish(form PublishForm, payload []byte) []byte {
	if p.busy {
		panic("BUG: a publish on a connection that has one unanswered")
	}
	p.busy = true
	p.form = form
	if p.socket != nil {
		p.ref++
		return p.kit.command(form, payload, p.ref)
	}
	p.parser.Expect()
	if form.wrap != nil {
		p.kit.wrapped = form.wrap(p.kit.wrapped[:0], payload)
		payload = p.kit.wrapped
	}
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
	if p.taken {
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
	var err error
	p.position, p.taken, err = p.form.answer(p.form.topic, p.head, p.body)
	if err != nil {
		return err
	}
	p.busy = false
	return nil
}

// published reads the answer to a publish as PROTOCOL.md has it.
func published(topic string, head Head, body []byte) (p wire.Position, taken bool, err error) {
	if head.Status != http.StatusOK {
		return p, false, nil
	}
	var answer wire.Published
	if err := json.Unmarshal(body, &answer); err != nil {
		return p, false, fmt.Errorf("answer %.200q: %w", body, err)
	}
	if answer.Position.Topic != topic || answer.Position.Offset == 0 {
		return p, false, fmt.Errorf("answer %.200q is not the position of a message of topic %q", body, topic)
	}
	return answer.Position, true, nil
}

// anySuccess reads an answer of which only the status matters.
func anySuccess(_ string, head Head, _ []byte) (p wire.Position, taken bool, err error) {
	return p, head.Status >= 200 && head.Status < 300, nil
}
