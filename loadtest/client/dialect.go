package client

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Machine is one connection's side of a dialect, to be driven by an event
// loop; eventloop.Machine says what each method means.
type Machine interface {
	Connected(now time.Duration) []byte
	Receive(now time.Duration, b []byte) ([]byte, error)
	Closed(now time.Duration, err error)
}

// A Dialect is how one kind of server is spoken to. Its values belong to one
// goroutine. The schedule, the payloads and the browser's headers are the same
// for all.
type Dialect interface {
	// TopicName names the nth topic of the test with the given tag.
	TopicName(tag string, n int) string
	// Subscriber returns a client that has yet to connect. It tells events that it is
	// Ready when the server says so. Of a server that says nothing on subscribing
	// (nchan's long poll, the floor's) it is as soon as its request is written; the
	// rest before the test then has to be long enough for the server to read it.
	Subscriber(number int, topic string, events Events) Machine
	// NewPublisher returns a publisher that has yet to connect.
	NewPublisher(events PublishEvents) *Publisher
	// PublishForm prepares publishes to topic.
	PublishForm(topic string) PublishForm
	// Positions reports whether messages and publishes' answers bear positions; if
	// not, those that events are told are zero.
	Positions() bool
}

// Pubsubd is the name of this project's own dialect.
const Pubsubd = "pubsubd"

// Options are what a Dialect is made of.
type Options struct {
	Dialect     string // one of Dialects
	Authority   string // host:port
	ContentType string // of payloads: application/json, or text/plain for plain ASCII

	Transport     Transport // of pubsubd's; empty: polls, as Mode says
	Format        Format    // of pubsubd's; empty: JSON
	Mode          Mode      // of pubsubd's polls
	Stateless     bool
	Subscriptions int // topics of a client; all but its own are quiet. 0 means 1

	// Paths with {topic} in them, of nchan and plain SSE. Empty: nchan's usual ones.
	SubscribePath, PublishPath string

	APIKey string // of Centrifugo's API
	Token  string // of Mercure's publisher, and of plain SSE's if not empty
}

// foreign makes the dialects of other servers.
var foreign = map[string]func(*Kit, Options) Dialect{
	"floor":             func(k *Kit, o Options) Dialect { return newFloor(k, o, false) },
	"floor-stream":      func(k *Kit, o Options) Dialect { return newFloor(k, o, true) },
	"nchan-longpoll":    newNchanPoll,
	"nchan-sse":         newNchanSSE,
	"nchan-ws":          newNchanWS,
	"centrifugo-sse":    newCentrifugoSSE,
	"centrifugo-stream": newCentrifugoStream,
	"centrifugo-ws":     newCentrifugoWS,
	"mercure":           newMercure,
	"sse":               newSSE,
}

// Dialects returns the names of all dialects.
func Dialects() []string {
	return []string{
		Pubsubd, "floor", "floor-stream", "nchan-longpoll", "nchan-sse", "nchan-ws",
		"centrifugo-sse", "centrifugo-stream", "centrifugo-ws", "mercure", "sse",
	}
}

// NewDialect returns the dialect of that name, with a Kit of its own.
func NewDialect(o Options) Dialect {
	k := NewKit(o.Authority, o.Mode, o.Stateless)
	k.subscriptions = max(o.Subscriptions, 1)
	k.format = cmp.Or(o.Format, JSON)
	if make, ok := foreign[o.Dialect]; ok {
		return make(k, o)
	}
	if o.Dialect != Pubsubd {
		panic(fmt.Sprintf("BUG: dialect %q was not checked", o.Dialect))
	}
	return ownDialect{k, o, k.subscribers(o)}
}

// subscribers returns what makes clients of pubsubd.
func (k *Kit) subscribers(o Options) func(number int, topic string, events Events) Machine {
	switch o.Transport {
	case SSE:
		return eventsOf(k, o)
	case WebSocket:
		return socketsOf(k, o)
	case Streaming:
		k.mode = Stream
	case LongPoll:
	}
	return func(number int, topic string, events Events) Machine {
		return k.NewSubscriber(number, topic, events)
	}
}

// ownDialect is PROTOCOL.md's.
type ownDialect struct {
	*Kit
	options    Options
	subscriber func(number int, topic string, events Events) Machine
}

func (d ownDialect) TopicName(tag string, n int) string {
	return "loadtest." + tag + ".t" + strconv.Itoa(n)
}

func (d ownDialect) Subscriber(number int, topic string, events Events) Machine {
	return d.subscriber(number, topic, events)
}

func (d ownDialect) PublishForm(topic string) PublishForm {
	return NewPublishForm(d.options.Authority, topic, d.options.ContentType)
}

func (d ownDialect) Positions() bool { return true }

// A foreignDialect is another server's, put together from what differs.
type foreignDialect struct {
	*Kit
	// subscriber and form do what Dialect says.
	subscriber func(number int, topic string, events Events) Machine
	form       func(topic string) PublishForm
}

// TopicName keeps to letters, digits and underscores, which every server takes
// in a path, a channel or a pattern such as \w+.
func (d *foreignDialect) TopicName(tag string, n int) string {
	return "loadtest_" + tag + "_t" + strconv.Itoa(n)
}

func (d *foreignDialect) Subscriber(number int, topic string, events Events) Machine {
	return d.subscriber(number, topic, events)
}

func (d *foreignDialect) PublishForm(topic string) PublishForm { return d.form(topic) }

func (d *foreignDialect) Positions() bool { return false }

// at puts a topic into a path.
func at(path, topic string) string { return strings.ReplaceAll(path, "{topic}", topic) }

// Get is a fetch's request.
func Get(authority, path string) []byte {
	return []byte("GET " + path + " HTTP/1.1\r\n" + browserHeaders(authority) + "\r\n")
}

// EventSource is the request that a browser's EventSource makes.
func EventSource(authority, path string) []byte {
	headers := strings.Replace(browserHeaders(authority), "Accept: */*\r\n", "Accept: text/event-stream\r\nCache-Control: no-cache\r\n", 1)
	return []byte("GET " + path + " HTTP/1.1\r\n" + headers + "\r\n")
}

// PostTo is a fetch's head, for NewForm. more are whole header lines.
func PostTo(authority, path, contentType, more string) string {
	return "POST " + path + " HTTP/1.1\r\n" + browserHeaders(authority) + more + postHeaders(authority, contentType)
}

// plainForm posts the payload itself, and takes any 2xx for success.
func plainForm(topic, head string) PublishForm {
	return PublishForm{topic: topic, head: head, answer: anySuccess}
}
