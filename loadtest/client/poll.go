package client

import (
	"fmt"
	"net/http"
	"time"
)

// A poller is a client of a server that answers each poll with one message as
// the body: nchan's long poll, and the floor's.
//
// nchan's answers bear Last-Modified and Etag, which together are the message's
// id; a poll that repeats them is answered with the message after that one, so
// nothing is lost between two polls.
type poller struct {
	number int
	events Events
	shared *pollerKit
	start  []byte // the first request, and every one to a server without ids

	parser  Parser
	now     time.Duration
	head    Head
	body    []byte // of an answer that comes in parts
	message Frame
	idle    bool
}

// A pollerKit is what all pollers of a Kit share.
type pollerKit struct {
	kit   *Kit
	byIDs bool // answers must bear ids
}

func (k *pollerKit) newPoller(number int, request []byte, events Events) Machine {
	return &poller{number: number, events: events, shared: k, start: request, parser: Parser{heads: &k.kit.polls}}
}

// Connected is part of Machine. Nothing will be heard of the subscription before
// its first message; see Dialect.
func (p *poller) Connected(time.Duration) []byte {
	p.events.Ready(p.number, noPosition)
	p.parser.Expect()
	return p.start
}

// Receive is part of Machine.
func (p *poller) Receive(now time.Duration, b []byte) ([]byte, error) {
	p.now = now
	if err := p.parser.Feed(b, p); err != nil || !p.idle {
		return nil, err
	}
	p.idle = false
	p.parser.Expect()
	return p.next(), nil
}

// next is the poll for what follows the last answer.
func (p *poller) next() []byte {
	if !p.shared.byIDs {
		return p.start
	}
	k := p.shared.kit
	b := append(k.scratch[:0], p.start[:len(p.start)-len("\r\n")]...)
	b = append(b, "If-Modified-Since: "...)
	b = append(b, p.head.LastModified...)
	b = append(b, "\r\nIf-None-Match: "...)
	b = append(b, p.head.ETag...)
	k.scratch = append(b, "\r\n\r\n"...)
	return k.scratch
}

// Closed is part of Machine.
func (p *poller) Closed(_ time.Duration, err error) { p.events.Closed(p.number, err) }

// Head is part of Receiver.
func (p *poller) Head(h Head) error {
	p.head, p.body = h, p.body[:0]
	if h.Status == http.StatusOK && p.shared.byIDs && (h.LastModified == "" || h.ETag == "") {
		return fmt.Errorf("the answer to a poll has Last-Modified %q and Etag %q; without both, the next poll may lose messages", h.LastModified, h.ETag)
	}
	return nil
}

// Body is part of Receiver.
func (p *poller) Body(part []byte) error {
	// Fast path: the message came whole, and need not be kept.
	if !p.head.Chunked && int64(len(part)) == p.head.Length && p.head.Status == http.StatusOK {
		return p.deliver(part)
	}
	var err error
	p.body, err = collect(p.body, part)
	return err
}

// End is part of Receiver.
func (p *poller) End() error {
	p.idle = true
	if p.head.Status != http.StatusOK {
		return refused("poll", p.head, p.body)
	}
	if len(p.body) == 0 {
		return nil
	}
	return p.deliver(p.body)
}

func (p *poller) deliver(message []byte) error {
	p.message = Frame{Kind: Message, Data: message}
	return p.events.Message(p.number, &p.message, p.now)
}
