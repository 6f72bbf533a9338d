package transport

import (
	"slices"
	"strconv"
	"sync"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Events makes the ids of one event stream. A client that reconnects sends the last id
// that it received. Events belongs to the stream's poll. It is nil for an answer that is
// not an event stream.
//
// With one topic, the id of an event is the message's position, so all subscribers share
// the event. With several topics, an id has the positions of all topics, so each stream
// composes its own events. If that id could be too long, or the topics are not known, the
// id has the session and the number of frames that were sent.
type Events struct {
	kind eventsKind
	at   wire.Position // sharedEvents: of the last frame

	id   []byte // ownEvents, referringEvents: of the last event
	head int    // referringEvents: how many bytes of id precede the count

	topics []string // ownEvents: in the order of their positions in id
	ends   []int    // ownEvents: where these positions end in id

	count uint64 // referringEvents: frames of the session until the last event
}

type eventsKind uint8

const (
	sharedEvents eventsKind = iota
	ownEvents
	referringEvents
)

// EventsOf returns the Events of a stream that begins at positions, one for each topic.
func EventsOf(positions []wire.Position) *Events {
	if len(positions) == 1 {
		return &Events{at: positions[0]}
	}
	e := &Events{kind: ownEvents}
	for i, p := range positions {
		if i > 0 {
			e.id = append(e.id, ',')
		}
		e.id = p.Append(e.id)
		e.topics, e.ends = append(e.topics, p.Topic), append(e.ends, len(e.id))
	}
	return e
}

// EventsReferringTo returns the Events of a session's stream whose client has count frames
// of the session.
func EventsReferringTo(s *session.Session, count uint64) *Events {
	id := EventID{Session: s.ID(), Count: count}.Append(nil)
	return &Events{kind: referringEvents, id: id, head: len(id) - len(strconv.FormatUint(count, 10)), count: count}
}

// NeedSession reports whether ids of events for these topics have to refer to a session:
// positions could become too long for an id, or a pattern may match other topics later.
func NeedSession(topics []wire.Start) bool {
	length := -1
	for _, start := range topics {
		if wire.IsPattern(start.Topic) {
			return true
		}
		length += longestPosition(start.Topic) + 1
	}
	return length >= maxEventID
}

// refer reports whether ids refer to a session, which then keeps the frames that it sent.
func (e *Events) refer() bool { return e != nil && e.kind == referringEvents }

// edge returns a hello or end frame in a format, as an event if there are Events.
func (e *Events) edge(format frame.Format, c wire.Content) []byte {
	if e == nil {
		return format.Append(nil, c)
	}
	return frame.Event{ID: e.last(), RetryMS: frame.EventRetry(c.End)}.Append(nil, c)
}

// last returns the id of the last event, or the id with which the stream begins.
func (e *Events) last() []byte {
	if e.kind == sharedEvents {
		return e.at.Append(nil)
	}
	return e.id
}

// send calls Sink.Send. Events that are composed for this stream are sent as lead.
func (e *Events) send(to Sink, lead []byte, frames []*frame.Frame) (int, error) {
	if e == nil || len(frames) == 0 {
		return to.Send(lead, frames)
	}
	if e.kind == sharedEvents {
		e.at = frames[len(frames)-1].Position()
		return to.Send(lead, frames)
	}
	c := compositions.Get().(*composition)
	defer c.free()
	c.bytes = append(c.bytes[:0], lead...)
	for _, f := range frames {
		c.bytes = f.AppendEvent(c.bytes, e.next(f))
	}
	if _, err := to.Send(c.bytes, nil); err != nil {
		return 0, err
	}
	return len(c.bytes) - len(lead), nil
}

// next returns the id of f's event. It is valid until the next call.
func (e *Events) next(f *frame.Frame) []byte {
	if e.kind == ownEvents {
		e.move(f.Position())
		return e.id
	}
	e.count++
	e.id = strconv.AppendUint(e.id[:e.head], e.count, 10)
	return e.id
}

// move replaces the position of a topic in the id.
func (e *Events) move(p wire.Position) {
	i := slices.Index(e.topics, p.Topic)
	if i < 0 {
		panic("BUG: a frame of a topic that is not in the stream")
	}
	begin := 0
	if i > 0 {
		begin = e.ends[i-1] + len(",")
	}
	var buf [maxPosition]byte
	text := p.Append(buf[:0])
	grown := len(text) - (e.ends[i] - begin)
	e.id = slices.Replace(e.id, begin, e.ends[i], text...)
	for ; i < len(e.ends) && grown != 0; i++ {
		e.ends[i] += grown
	}
}

// maxPosition is about how long a position is. A longer one costs an allocation.
const maxPosition = 128

// Bounds of a part with events that are composed for one client.
const (
	composedFrames = 32 // each with an id of up to maxEventID
	composedBytes  = 64 << 10
)

// A composition is memory in which events are composed for one client.
type composition struct{ bytes []byte }

var compositions = sync.Pool{New: func() any { return new(composition) }}

// free keeps the memory for reuse unless a large message has made it large.
func (c *composition) free() {
	if cap(c.bytes) <= 4*composedBytes {
		compositions.Put(c)
	}
}
