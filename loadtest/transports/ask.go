package transports

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/floor/bare"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A transport is a client's side of one connection, without I/O. It belongs to
// the client's goroutine.
type transport interface {
	// ask returns the bytes that ask for messages; valid until the next call.
	ask() []byte
	// receive takes what arrived, and returns what to answer at once, if anything.
	receive(b []byte) ([]byte, error)
}

// A polling is the transport of polls that are answered and made again: of a
// session, acking what was had, or of the bare loop, which looks at nothing.
type polling struct {
	content *content
	parser  *client.Parser
	before  string // what a request begins with, up to the ack
	after   string
	media   string // that an answer must have

	request []byte // the last
	ended   bool   // the answer; the next request is due
	refusal refusal
}

func (p *polling) ask() []byte {
	p.parser.Expect()
	p.ended = false
	b := append(p.request[:0], p.before...)
	b = strconv.AppendUint(b, p.content.tally.frames, 10)
	p.request = append(b, p.after...)
	return p.request
}

func (p *polling) receive(b []byte) ([]byte, error) {
	if err := p.parser.Feed(b, p); err != nil || !p.ended || p.content.tally.complete() {
		return nil, err
	}
	return p.ask(), nil
}

// Head is part of client.Receiver.
func (p *polling) Head(h client.Head) error { return p.refusal.head(h, p.media) }

// Body is part of client.Receiver.
func (p *polling) Body(part []byte) error {
	if p.refusal.is() {
		return p.refusal.body(part)
	}
	return p.content.feed(part)
}

// End is part of client.Receiver.
func (p *polling) End() error {
	p.ended = true
	if p.refusal.is() {
		return p.refusal.err()
	}
	return p.content.ended()
}

// A streaming is the transport of one request whose answer does not end.
type streaming struct {
	polling
	request []byte
}

func (s *streaming) ask() []byte {
	s.parser.Expect()
	return s.request
}

func (s *streaming) receive(b []byte) ([]byte, error) {
	if err := s.parser.Feed(b, s); err != nil {
		return nil, err
	}
	if s.ended && !s.content.tally.complete() {
		return nil, fmt.Errorf("the answer ended with %d messages missing", s.content.tally.lost())
	}
	return nil, nil
}

// A refusal is an answer that is not what was asked for.
type refusal struct {
	status int
	text   []byte
}

func (r *refusal) is() bool { return r.status != 0 }

func (r *refusal) head(h client.Head, media string) error {
	if h.Status != http.StatusOK {
		*r = refusal{status: h.Status}
		return nil
	}
	got, _, _ := strings.Cut(h.ContentType, ";")
	if got != media && (h.Chunked || h.Length > 0) {
		return fmt.Errorf("answered with content type %q, not %s", h.ContentType, media)
	}
	return nil
}

// mostRefused bounds what is kept of a refusal.
const mostRefused = 4 << 10

func (r *refusal) body(part []byte) error {
	r.text = append(r.text, part[:min(len(part), mostRefused-len(r.text))]...)
	return nil
}

func (r *refusal) err() error { return fmt.Errorf("answered %d: %.300q", r.status, r.text) }

// A socketing is the transport of a WebSocket.
type socketing struct {
	content *content
	request []byte
	first   byte // of a frame that carries a message: whole text, or whole binary
	open    bool
	carry   carry
	replies []byte
}

func (s *socketing) ask() []byte { return s.request }

func (s *socketing) receive(b []byte) ([]byte, error) {
	s.replies = s.replies[:0]
	if err := s.carry.feed(b, s.step); err != nil {
		return nil, err
	}
	return s.replies, nil
}

// step takes what b begins with, and returns how long that is; 0 if it is not all
// there.
func (s *socketing) step(b []byte) (int, error) {
	if !s.open {
		return s.handshake(b)
	}
	payload, n, err := client.CutFrame(b)
	if err != nil || n == 0 {
		return 0, err
	}
	switch b[0] {
	case s.first:
		return n, s.frame(payload)
	case client.FinPing:
		s.replies = client.AppendFrame(s.replies, client.FinPong, payload)
	case client.FinPong:
	case client.FinClose:
		return 0, fmt.Errorf("the server closed the WebSocket with %q", payload)
	default:
		return 0, fmt.Errorf("frame begins with %#x, where a message begins with %#x", b[0], s.first)
	}
	return n, nil
}

func (s *socketing) frame(payload []byte) error {
	if err := s.content.feed(payload); err != nil {
		return err
	}
	return s.content.ended() // one frame a message
}

func (s *socketing) handshake(b []byte) (int, error) {
	head, _, ok := bytes.Cut(b, []byte("\r\n\r\n"))
	if !ok {
		return 0, nil
	}
	if err := client.CheckUpgraded(string(head)); err != nil {
		return 0, fmt.Errorf("handshake %.300q: %w", b, err)
	}
	s.open = true
	return len(head) + len("\r\n\r\n"), nil
}

// A plain is the transport of a connection that carries nothing but frames.
type plain struct {
	content *content
	request []byte
}

func (p *plain) ask() []byte { return p.request }

func (p *plain) receive(b []byte) ([]byte, error) { return nil, p.content.feed(b) }

// An asker makes transports for the clients of one subject.
type asker struct {
	subject
	authority string
	start     string // of the topic: where delivery begins
	at        wire.Position
	bare      byte // the number of the floor's frames
}

// newTransport returns a client's transport, and what reads its messages; session
// is that of a poll.
func (a *asker) newTransport(t *tally, session string) (transport, *content) {
	c := newContent(a.encoding(), a.at, t)
	return a.over(c, session), c
}

func (a *asker) over(c *content, session string) transport {
	media := wire.NDJSONType
	if a.format == CBOR {
		media = "application/cbor-seq"
	}
	query := "?topic=" + a.start + "&format=" + a.format
	switch a.transport {
	case SSE:
		return a.stream(c, client.EventSource(a.authority, "/v1/sse?topic="+a.start), "text/event-stream")
	case Stream:
		return a.stream(c, client.Get(a.authority, "/v1/sessions/"+session+"/poll?ack=0&mode=stream&format="+a.format), media)
	case WebSocket:
		first := map[string]byte{JSON: client.FinText, CBOR: client.FinBinary}[a.format]
		return &socketing{content: c, request: client.Upgrade(a.authority, "/v1/ws"+query), first: first}
	case TCP:
		return &plain{c, tcpHello(a.start)}
	case BareWriter:
		return &plain{c, []byte{bare.Write, a.bare}}
	}
	return a.poll(c, session, media)
}

func (a *asker) stream(c *content, request []byte, media string) transport {
	return &streaming{polling{content: c, parser: client.NewParser(false), media: media}, request}
}

// poll asks as a browser does. The bare loop is asked the same, by the same number
// of bytes.
func (a *asker) poll(c *content, session, media string) transport {
	mode := a.transport
	if mode == BareLoop {
		mode = Single
	}
	request := string(client.Get(a.authority, "/v1/sessions/"+session+"/poll?ack=\x00&mode="+mode+"&format="+a.format))
	before, after, _ := strings.Cut(request, "\x00")
	return &polling{content: c, parser: client.NewParser(false), before: before, after: after, media: media}
}

// tcpHello is the first item on a TCP connection: {"topics":[start]}.
func tcpHello(start string) []byte {
	b := append(cborHead(nil, cborMap, 1), cborText("topics")...)
	return append(cborHead(b, cborArray, 1), cborText(start)...)
}
