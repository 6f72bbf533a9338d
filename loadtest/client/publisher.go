package client

import (
	"errors"
	"net/http"
	"time"
)

// PublishEvents are told what happens to Publishers, on the loop's goroutine.
type PublishEvents interface {
	// Opened: the connection is there and free. What it returns is sent.
	Opened(p *Publisher) []byte
	// Answered: the publish was taken (nil), or refused. The connection is free
	// again; what it returns is sent.
	Answered(p *Publisher, refusal error, now time.Duration) []byte
	// Closed: the connection ended.
	Closed(p *Publisher, err error)
}

// A Publisher is one connection that publishes, one message at a time.
type Publisher struct {
	kit    *Kit
	events PublishEvents

	parser Parser
	head   Head
	body   []byte
	busy   bool // a publish is on its way or unanswered
}

// NewPublisher returns a publisher that has yet to connect.
func (k *Kit) NewPublisher(events PublishEvents) *Publisher {
	return &Publisher{kit: k, events: events, parser: Parser{heads: &k.answers}}
}

// Busy reports whether a publish is unanswered.
func (p *Publisher) Busy() bool { return p.busy }

// A PublishForm is the unchanging part of publishes to one topic.
type PublishForm struct{ head string }

// NewPublishForm prepares publishes of the given content type to topic.
func NewPublishForm(authority, topic, contentType string) PublishForm {
	return PublishForm{head: "POST /v1/topics/" + topic + "/messages HTTP/1.1\r\n" +
		browserHeaders(authority) + postHeaders(authority, contentType)}
}

// Publish returns the request that publishes payload. It must not be busy. The
// bytes are valid until the next call of a method of anything of the same Kit.
func (p *Publisher) Publish(form PublishForm, payload []byte) []byte {
	if p.busy {
		panic("BUG: a publish on a connection that has one unanswered")
	}
	p.busy = true
	p.parser.Expect()
	return p.kit.withBody(form.head, payload)
}

// Connected returns what the events want to send first.
func (p *Publisher) Connected(time.Duration) []byte { return p.events.Opened(p) }

// Receive takes the bytes that arrived at now and returns what to send. After an
// error the connection must be closed.
func (p *Publisher) Receive(now time.Duration, b []byte) ([]byte, error) {
	wasBusy := p.busy
	if err := p.parser.Feed(b, p); err != nil {
		return nil, err
	}
	if !wasBusy || p.busy {
		return nil, nil
	}
	return p.events.Answered(p, p.refusal(), now), nil
}

// Closed says that the connection ended for the given reason.
func (p *Publisher) Closed(_ time.Duration, err error) {
	if p.busy {
		err = errors.Join(errors.New("publish unanswered"), err)
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
	p.busy = false
	return nil
}
