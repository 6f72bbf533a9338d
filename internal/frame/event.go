package frame

import (
	"bytes"
	"math/rand/v2"
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Events are frames as an EventSource takes them (HTML, section "Server-sent
// events"). A message has no event type, so that onmessage gets messages alone; gaps,
// hello and end have their own:
//
//	retry: 1234
//	event: hello
//	id: a.b@k3:17
//	data: {"hello":{…}}
//
//	id: a.b@k3:18
//	data: {"position":"a.b@k3:18","time":1700000000000,"data":[1,2]}
//
//	event: gap
//	id: a.b@k3:21
//	data: {"gap":{…}}
//
// Each has an id: by the standard a connection begins without one, and whatever comes
// first without an id would make the client forget the one that it has.

// An Event is what stands around the data of an event.
type Event struct {
	ID []byte // empty: none

	// RetryMS is how long the client is to wait, from then on, before it comes back
	// to a stream that has ended; 0 says nothing.
	RetryMS int64
}

// eventRetryMS is how long a client waits at least that comes back for no other
// reason than that its connection was lost.
const eventRetryMS = 1000

// EventRetry returns how long, in milliseconds, a client is to wait that may come
// back: what the problem says or, for none that says so, one to two seconds, so that
// those who were sent away together do not come back together.
func EventRetry(p *wire.Problem) int64 {
	if p != nil && p.RetryAfterMS > 0 {
		return p.RetryAfterMS
	}
	return eventRetryMS + rand.Int64N(eventRetryMS+1)
}

// encodeEvent returns f as an event whose id is its position.
func encodeEvent(f *Frame) []byte {
	return f.AppendEvent(make([]byte, 0, len(f.Bytes(NDJSON))+128), f.Position().Append(nil))
}

// AppendEvent appends the frame as an event with an id of the connection's own.
func (f *Frame) AppendEvent(dst, id []byte) []byte {
	name := ""
	if f.gap != nil {
		name = "gap"
	}
	return Event{ID: id}.append(dst, name, f.Bytes(NDJSON))
}

// AppendHello appends h as the event that a stream begins with.
func (e Event) AppendHello(dst []byte, h *wire.Hello) []byte {
	return e.append(dst, "hello", wire.Content{Hello: h}.AppendJSON(nil))
}

// AppendEnd appends the event that says why there are no more.
func (e Event) AppendEnd(dst []byte, p *wire.Problem) []byte {
	return e.append(dst, "end", wire.Content{End: p}.AppendJSON(nil))
}

// append appends an event whose data is a line of JSON, with its newline. An empty
// name is that of a message.
func (e Event) append(dst []byte, name string, line []byte) []byte {
	if e.RetryMS > 0 {
		dst = strconv.AppendInt(append(dst, "retry: "...), e.RetryMS, 10)
		dst = append(dst, '\n')
	}
	if name != "" {
		dst = append(append(append(dst, "event: "...), name...), '\n')
	}
	if len(e.ID) > 0 {
		dst = append(append(append(dst, "id: "...), e.ID...), '\n')
	}
	dst = append(append(dst, "data: "...), bytes.TrimSuffix(line, []byte("\n"))...)
	return append(dst, "\n\n"...)
}
