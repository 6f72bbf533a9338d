package loadtest

import (
	"errors"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
)

// voices publish on the connections of the clients, each its own messages and one
// at a time: what is due before the answer to the one before waits for it. They
// have no connections besides, so that the pool of them stays empty.
type voices struct {
	*pool
	clients []*voice // by number
	voiceOf map[*client.Publisher]*voice
}

func newVoices(p *pool) *voices {
	return &voices{pool: p, voiceOf: map[*client.Publisher]*voice{}}
}

// A voice is one client's.
type voice struct {
	publisherConn
	waiting []publication
	ended   bool // the connection
}

var errVoiceEnded = errors.New("the connection of the publishing client has ended")

// dial connects the next client.
func (v *voices) dial(loop eventloop.Loop, m client.Speaker) {
	one := &voice{}
	one.publisher = m.Publisher(v)
	v.clients = append(v.clients, one)
	v.conns[one.publisher], v.voiceOf[one.publisher] = &one.publisherConn, one
	one.conn = loop.Dial(m)
}

// publish sends m on its client's connection, or has it wait.
func (v *voices) publish(m publication) {
	one := v.clients[m.client]
	switch {
	case one.ended:
		v.refused(m, errVoiceEnded)
	case one.publisher.Busy():
		v.waited++
		v.held++
		one.waiting = append(one.waiting, m)
	default:
		one.conn.Send(v.request(&one.publisherConn, m))
	}
}

// Free is part of client.PublishEvents.
func (v *voices) Free(publisher *client.Publisher) []byte {
	one := v.voiceOf[publisher]
	if len(one.waiting) == 0 {
		return nil
	}
	m := one.waiting[0]
	one.waiting = one.waiting[1:]
	v.held--
	return v.request(&one.publisherConn, m)
}

// Closed is part of client.PublishEvents. That the connection ended is told of the
// client, too.
func (v *voices) Closed(publisher *client.Publisher, err error) {
	one := v.voiceOf[publisher]
	one.ended = true
	if publisher.Busy() {
		v.underway--
		v.failed(err)
	}
	v.held -= len(one.waiting)
	for _, m := range one.waiting {
		v.refused(m, errVoiceEnded)
	}
	one.waiting = nil
}
