package client

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A Speaker is a Machine that can publish on its own connection.
type Speaker interface {
	Machine
	// Publisher returns what publishes on it. It must be asked for before the machine
	// is dialled, and is Free only after an answer.
	Publisher(events PublishEvents) *Publisher
}

// Publisher is part of Speaker.
func (s *socket) Publisher(events PublishEvents) *Publisher {
	s.publisher = &Publisher{kit: s.kit, events: events, socket: s}
	return s.publisher
}

// command is what is said on a WebSocket in place of a request.
func (k *Kit) command(form PublishForm, payload []byte, ref uint64) []byte {
	b := append(k.wrapped[:0], `{"publish":{"topic":"`...)
	b = append(b, form.topic...)
	if form.contentType == "application/json" {
		b = append(append(b, `","data":`...), payload...)
	} else {
		b = append(append(b, `","type":"`...), form.contentType...)
		b = strconv.AppendQuote(append(b, `","text":`...), string(payload))
	}
	b = strconv.AppendUint(append(b, `},"ref":`...), ref, 10)
	k.wrapped = append(b, '}')
	first := byte(FinText)
	b = k.wrapped
	if k.format == CBOR {
		first, b = FinBinary, cbor.AppendFromJSON(nil, b)
	}
	k.scratch = AppendFrame(k.scratch[:0], first, b)
	return k.scratch
}

// reply takes what answers the one publish that is on its way.
func (l *listener) reply(r *wire.Reply, now time.Duration) error {
	p := l.publisher
	if p == nil || !p.busy || r.Ref == nil || *r.Ref != p.ref {
		return errUnasked
	}
	position, refusal, err := p.form.replied(r)
	if err != nil {
		return err
	}
	p.busy = false
	p.events.Answered(p, position, refusal, now)
	l.commands = append(l.commands, p.events.Free(p)...)
	return nil
}

func (f *PublishForm) replied(r *wire.Reply) (at wire.Position, refusal, err error) {
	switch {
	case r.Problem != nil:
		return at, fmt.Errorf("publish: %w", plainly(r.Problem)), nil
	case r.Position == nil || r.Position.Topic != f.topic || r.Position.Offset == 0:
		return at, nil, fmt.Errorf("reply %v is not the position of a message of topic %q", r.Position, f.topic)
	}
	return *r.Position, nil, nil
}
