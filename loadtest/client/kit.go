package client

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Mode is how polls are answered; see PROTOCOL.md, "Polls and acknowledgements".
type Mode string

// The modes.
const (
	Single   Mode = "single"
	Batch    Mode = "batch"
	Multiple Mode = "multiple"
	Stream   Mode = "stream"
)

// Modes returns every mode, in the order of the protocol.
func Modes() []Mode { return []Mode{Single, Batch, Multiple, Stream} }

// A Kit is what all clients of one event loop share: the prepared parts of
// requests, and the caches of what answers looked like. It belongs to the loop's
// goroutine.
type Kit struct {
	mode      Mode
	stateless bool
	format    Format

	getEnd string // what ends a GET's head, from the version on
	open   string // the head of a session's opening, up to before the length

	subscriptions int // topics of a session

	polls   headCache // heads of polls' answers
	streams headCache // heads of foreign servers' answers without end
	answers headCache // heads of publishes' answers
	lines   lineCache
	items   itemCache

	wrapped []byte // the body being made
	scratch []byte // the request being made; valid until the next is
}

// NewKit returns a Kit for clients of the server at the given authority
// (host:port).
func NewKit(authority string, mode Mode, stateless bool) *Kit {
	headers := browserHeaders(authority)
	return &Kit{
		mode:      mode,
		stateless: stateless,

		subscriptions: 1,
		format:        JSON,

		streams: headCache{endless: true},
		getEnd:  " HTTP/1.1\r\n" + headers + "\r\n",
		open:    "POST /v1/sessions HTTP/1.1\r\n" + headers + postHeaders(authority, "application/json"),
	}
}

const userAgent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"

// browserHeaders are those that Chromium sends with a fetch from a page of the
// same origin: a server must not look good on requests that nobody makes.
func browserHeaders(authority string) string {
	return "Host: " + authority + "\r\n" +
		"Connection: keep-alive\r\n" +
		"sec-ch-ua-platform: \"Linux\"\r\n" +
		"User-Agent: " + userAgent + "\r\n" +
		"sec-ch-ua: \"Chromium\";v=\"140\", \"Not=A?Brand\";v=\"24\"\r\n" +
		"sec-ch-ua-mobile: ?0\r\n" +
		"Accept: */*\r\n" +
		"Sec-Fetch-Site: same-origin\r\n" +
		"Sec-Fetch-Mode: cors\r\n" +
		"Sec-Fetch-Dest: empty\r\n" +
		"Referer: http://" + authority + "/\r\n" +
		"Accept-Encoding: identity\r\n" + // but for this: what fills a message shrinks to nothing
		"Accept-Language: en-US,en;q=0.9\r\n"
}

// postHeaders are the further headers of a request with a body, up to its length.
func postHeaders(authority, contentType string) string {
	return "Origin: http://" + authority + "\r\nContent-Type: " + contentType + "\r\nContent-Length: "
}

// topicsOf returns the client's own topic and, if there are to be more, others that
// are its alone, and to which nobody publishes.
func (k *Kit) topicsOf(topic string, client int) []string {
	topics := []string{topic}
	for i := 1; i < k.subscriptions; i++ {
		topics = append(topics, fmt.Sprintf("%s.quiet.%d.%d", topic, client, i))
	}
	return topics
}

// own finds the position of a client's own topic among those of all that were
// asked for.
func (k *Kit) own(topic string, positions []wire.Position) (wire.Position, bool) {
	i := slices.IndexFunc(positions, func(p wire.Position) bool { return p.Topic == topic })
	if i < 0 || len(positions) != k.subscriptions {
		return wire.Position{}, false
	}
	return positions[i], true
}

// openRequest opens a client's session that begins now.
func (k *Kit) openRequest(topic string, client int) []byte {
	var starts []wire.Start
	for _, name := range k.topicsOf(topic, client) {
		starts = append(starts, wire.Start{Topic: name})
	}
	body, err := json.Marshal(wire.OpenRequest{Topics: starts})
	if err != nil {
		panic("BUG: a request without anything odd does not marshal: " + err.Error())
	}
	return k.withBody(k.open, body)
}

func (k *Kit) withBody(head string, body []byte) []byte {
	b := append(k.scratch[:0], head...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	b = append(b, body...)
	k.scratch = b
	return b
}

// sessionPoll polls with the count of frames had.
func (k *Kit) sessionPoll(session string, frames uint64) []byte {
	b := append(k.scratch[:0], "GET /v1/sessions/"...)
	b = append(b, session...)
	b = append(b, "/poll?ack="...)
	b = strconv.AppendUint(b, frames, 10)
	return k.endPoll(b)
}

// statelessPoll polls from a position, or from now if it has no epoch.
func (k *Kit) statelessPoll(from wire.Position) []byte {
	b := append(k.scratch[:0], "GET /v1/poll?topic="...)
	if from.Epoch == "" {
		b = append(b, from.Topic...)
	} else {
		b = from.Append(b)
	}
	return k.endPoll(b)
}

func (k *Kit) endPoll(b []byte) []byte {
	b = append(b, "&mode="...)
	b = append(b, k.mode...)
	b = append(b, k.format.query()...)
	b = append(b, k.getEnd...)
	k.scratch = b
	return b
}

// A refused answer has another status than the one that was asked for.
func refused(what string, head Head, body []byte) error {
	var p wire.Problem
	if head.ContentType == wire.ProblemType && json.Unmarshal(body, &p) == nil && p.Code != "" {
		return fmt.Errorf("%s: answered %d: %w", what, head.Status, plainly(&p))
	}
	return fmt.Errorf("%s: answered %d: %.200q", what, head.Status, body)
}

// plainly puts into words what would be taken for a fault of the connection.
func plainly(p *wire.Problem) error {
	if p.Code == wire.CodeDraining {
		return fmt.Errorf("the server is draining: %w", p)
	}
	return p
}

// maxCollected bounds answers that are read as a whole: openings and problems.
const maxCollected = 64 << 10

// collect appends part to a body that is read as a whole.
func collect(body, part []byte) ([]byte, error) { return collectTo(maxCollected, body, part) }

// collectPush appends part to a push whose end has not come.
func collectPush(push, part []byte) ([]byte, error) {
	return collectTo(wire.MaxFrameBytes, push, part)
}

func collectTo(limit int, body, part []byte) ([]byte, error) {
	if len(body)+len(part) > limit {
		return nil, fmt.Errorf("answer is longer than %d bytes: %.80q", limit, body)
	}
	return append(body, part...), nil
}
