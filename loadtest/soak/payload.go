package soak

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An identity names a published message: its topic, its publisher, and the
// publisher's own count. It is the beginning of every payload, in ten letters and
// digits, so that the smallest message has it, too:
//
//	tt pp ssssss    base 36
type identity uint64

const (
	identityBytes   = 10
	mostTopics      = 36 * 36
	mostPublishers  = 36 * 36
	sequencesInSix  = 36 * 36 * 36 * 36 * 36 * 36
	base36          = "0123456789abcdefghijklmnopqrstuvwxyz"
	probePublisher  = mostPublishers - 1 // who publishes the last message of each topic
	smallestPayload = identityBytes
)

func newIdentity(topic, publisher int, sequence uint64) identity {
	return identity((uint64(topic)*mostPublishers+uint64(publisher))*sequencesInSix + sequence%sequencesInSix)
}

func (id identity) topic() int       { return int(id / sequencesInSix / mostPublishers) }
func (id identity) publisher() int   { return int(id / sequencesInSix % mostPublishers) }
func (id identity) sequence() uint64 { return uint64(id % sequencesInSix) }

func (id identity) String() string {
	return fmt.Sprintf("message %d of publisher %d on topic %d", id.sequence(), id.publisher(), id.topic())
}

func (id identity) appendTo(dst []byte) []byte {
	var digits [identityBytes]byte
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = base36[id%36]
		id /= 36
	}
	return append(dst, digits[:]...)
}

var errNoIdentity = errors.New("the payload does not begin with the name of a message")

func parseIdentity(b []byte) (identity, error) {
	if len(b) < identityBytes {
		return 0, errNoIdentity
	}
	var id identity
	for _, c := range b[:identityBytes] {
		digit := bytes.IndexByte([]byte(base36), c)
		if digit < 0 {
			return 0, errNoIdentity
		}
		id = id*36 + identity(digit)
	}
	return id, nil
}

// A payloads makes every message's payload from its identity alone, so that what
// arrives is compared byte by byte and nothing has to be kept. It is immutable.
type payloads struct {
	seed    uint64
	largest int    // bytes
	text    []byte // of letters and digits; longer than twice the largest
	binary  []byte // as long
}

func newPayloads(seed uint64, largest int) *payloads {
	p := &payloads{seed: seed, largest: largest, text: make([]byte, 2*largest), binary: make([]byte, 2*largest)}
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range p.text {
		p.text[i] = base36[rng.IntN(36)]
		p.binary[i] = byte(rng.Uint32())
	}
	return p
}

// A form is what a message looks like besides its identity.
type form struct {
	mediaType string // "" is JSON
	size      int    // bytes of the payload
	filler    []byte // what follows the identity
	ttl       time.Duration
}

// formOf is what the message looks like that is delivered: another one than it was
// published with, if the application changes it.
func (p *payloads) formOf(id identity) form {
	if o, _ := p.opinionOf(id); o == changes {
		return p.drawForm(id, p.seed+2)
	}
	return p.offered(id)
}

// offered is what the message looks like that is published.
func (p *payloads) offered(id identity) form { return p.drawForm(id, p.seed) }

// drawForm draws a form from id: most messages are small, one in a hundred is near
// the limit, one in fifty has a short life of its own.
func (p *payloads) drawForm(id identity, seed uint64) form {
	rng := rand.New(rand.NewPCG(seed, uint64(id)))
	f := form{size: p.drawSize(rng)}
	filler := p.text
	switch rng.IntN(3) {
	case 0:
		f.size = max(f.size, smallestPayload+2) // the quotes
	case 1:
		f.mediaType = "text/plain"
	case 2:
		f.mediaType, filler = "application/octet-stream", p.binary
	}
	n := f.size - identityBytes
	if f.mediaType == "" {
		n -= 2
	}
	at := rng.IntN(len(filler) - n)
	f.filler = filler[at : at+n]
	if rng.IntN(50) == 0 && id.publisher() != probePublisher {
		f.ttl = time.Duration(1+rng.IntN(3)) * time.Second
	}
	return f
}

func (p *payloads) drawSize(rng *rand.Rand) int {
	from, to := smallestPayload, min(300, p.largest)
	switch draw := rng.IntN(100); {
	case draw == 0:
		from, to = min(8<<10, p.largest), p.largest
	case draw < 10:
		from, to = min(300, p.largest), min(8<<10, p.largest)
	}
	return from + rng.IntN(to-from+1)
}

// body returns what is published.
func (p *payloads) body(id identity, f form) []byte {
	b := make([]byte, 0, f.size)
	if f.mediaType == "" {
		b = append(b, '"')
	}
	b = append(id.appendTo(b), f.filler...)
	if f.mediaType == "" {
		b = append(b, '"')
	}
	return b
}

// held returns the bytes that the message counts for in a history.
func (f *form) held() int {
	m := wire.Message{Type: f.mediaType}
	return m.Size() + f.size
}

// read returns whose payload m has, and an error unless it is whole.
func (p *payloads) read(m *wire.Message) (identity, error) {
	content := m.Data
	if m.Type == "" {
		if len(content) < 2 || content[0] != '"' || content[len(content)-1] != '"' {
			return 0, errNoIdentity
		}
		content = content[1 : len(content)-1]
	}
	id, err := parseIdentity(content)
	if err != nil {
		return 0, err
	}
	f := p.formOf(id)
	if m.Type != f.mediaType || !bytes.Equal(content[identityBytes:], f.filler) {
		return id, fmt.Errorf("%v arrived as %q with %d bytes, but was published with other contents (%q, %d bytes)",
			id, m.Type, len(m.Data), f.mediaType, f.size)
	}
	return id, nil
}
