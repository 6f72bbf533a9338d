package frame

import (
	"bytes"
	"math/rand/v2"
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Events are frames for an EventSource (HTML, section "Server-sent events"). A message has
// no event type, so onmessage gets only messages. Gaps, moved, hello and end have types:
//
//	retry: 1234
//	event: hello
//	data: {"hello":{…}}
//	id: a.b@k3:17
//
//	data: {"position":"a.b@k3:18","time":1700000000000,"data":[1,2]}
//	id: a.b@k3:18
//
//	event: gap
//	data: {"gap":{…}}
//	id: a.b@k3:21
//
//	event: moved
//	data: {"moved":{"positions":["a.b@k3:24"]}}
//	id: a.b@k3:24
//
//	event: heartbeat
//	data: {}
//
// The id comes last, because some clients (eventsource 2, r3labs/sse) take it at once, and would
// skip the message if the connection is cut before its data.
//
// Each event but a heartbeat has an id. By the standard a connection begins without one, so
// a first event without an id would make the client forget the id that it has. A heartbeat
// is never the first, and leaves the id as it is.

// An Event is an event without its data.
type Event struct {
	ID []byte // empty: none

	// RetryMS is how long the client waits before it reconnects; 0: unchanged.
	RetryMS int64
}

// eventRetryMS is the shortest wait of a client that lost its connection.
const eventRetryMS = 1000

// EventRetry returns how long a client waits before it reconnects, in milliseconds: what
// the problem says, or one to two seconds at random. Clients that were disconnected
// together must not reconnect together.
func EventRetry(p *wire.Problem) int64 {
	if p != nil && p.RetryAfterMS > 0 {
		return p.RetryAfterMS
	}
	return eventRetryMS + rand.Int64N(eventRetryMS+1)
}

// HeartbeatEvent returns a heartbeat that a page can see: an EventSource hides comments. The
// caller must not change the bytes.
func HeartbeatEvent() []byte { return heartbeatEvent }

var heartbeatEvent = []byte("event: heartbeat\ndata: {}\n\n")

// AppendEvent appends the frame as an event with the given id.
func (f *Frame) AppendEvent(dst, id []byte) []byte {
	content := wire.Content{Message: f.message}
	if f.other != nil {
		content = *f.other
	}
	return Event{ID: id}.append(dst, content, f.Bytes(NDJSON))
}

// Append appends the frame with content c as an event.
func (e Event) Append(dst []byte, c wire.Content) []byte { return e.append(dst, c, c.AppendJSON(nil)) }

// append appends an event whose data is c as a line of JSON, with its newline.
func (e Event) append(dst []byte, c wire.Content, line []byte) []byte {
	name := ""
	switch {
	case c.Gap != nil:
		name = "gap"
	case c.Moved != nil:
		name = "moved"
	case c.Hello != nil:
		name = "hello"
	case c.End != nil:
		name = "end"
	}
	if e.RetryMS > 0 {
		dst = strconv.AppendInt(append(dst, "retry: "...), e.RetryMS, 10)
		dst = append(dst, '\n')
	}
	if name != "" {
		dst = append(append(append(dst, "event: "...), name...), '\n')
	}
	dst = append(append(dst, "data: "...), bytes.TrimSuffix(line, []byte("\n"))...)
	dst = append(dst, '\n')
	if len(e.ID) > 0 {
		dst = append(append(append(dst, "id: "...), e.ID...), '\n')
	}
	return append(dst, '\n')
}
