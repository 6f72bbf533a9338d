package transport

import (
	"slices"
	"strconv"
	"sync"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Events are the ids that one event stream gives its events: what a client that comes
// back says that it has. They belong to the stream's poll. A nil *Events is of an
// answer that is no event stream.
//
// There are three kinds. Of one topic the id is the message's position, so that the
// event is shared with everyone. Of several, each event says all positions, in an id of
// this stream's own. Where these would be too long, or the topics are not known, the id
// refers to the session and how many of its frames were sent.
type Events struct {
	kind eventsKind
	at   wire.Position // shared: of the last frame

	id   []byte // own, referring: of the last event
	head int    // referring: how much of id stands before the count

	topics []string // own: in the order of their positions in id
	ends   []int    // own: where these end

	count uint64 // referring: frames that the client has, with those of this stream
}

type eventsKind uint8

const (
	sharedEvents eventsKind = iota
	ownEvents
	referringEvents
)

// EventsOf returns the events of a stream of topics, that begins at positions, one for
// each topic.
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

// EventsReferringTo returns the events of a session's stream whose client has count of
// the session's frames.
func EventsReferringTo(s *session.Session, count uint64) *Events {
	id := EventID{Session: s.ID(), Count: count}.Append(nil)
	return &Events{kind: referringEvents, id: id, head: len(id) - len(strconv.FormatUint(count, 10)), count: count}
}

// NeedSession reports whether events of these topics have to refer to a session: the
// longest that their positions may become does not fit an id, or they may be joined by
// others.
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

// refer reports whether the stream's poll is a session's, which keeps what it sent.
func (e *Events) refer() bool { return e != nil && e.kind == referringEvents }

// edge returns the frame that begins an answer, hello, or the one that ends it.
func (e *Events) edge(format frame.Format, c wire.Content) []byte {
	if e == nil {
		return format.Append(nil, c)
	}
	return frame.Event{ID: e.last(), RetryMS: frame.EventRetry(c.End)}.Append(nil, c)
}

// last is the id of the last event, or the one that the stream begins with.
func (e *Events) last() []byte {
	if e.kind == sharedEvents {
		return e.at.Append(nil)
	}
	return e.id
}

// send is Sink.Send. Frames with ids of this stream's own go as a part of lead.
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

// next returns the id of the event that f is. It holds until the next.
func (e *Events) next(f *frame.Frame) []byte {
	if e.kind == ownEvents {
		e.move(f.Position())
		return e.id
	}
	e.count++
	e.id = strconv.AppendUint(e.id[:e.head], e.count, 10)
	return e.id
}

// move puts a topic's new position in the place of its last.
func (e *Events) move(p wire.Position) {
	i := slices.Index(e.topics, p.Topic)
	if i < 0 {
		panic("BUG: a stream was sent a topic that it did not begin with")
	}
	begin := 0
	if i > 0 {
		begin = e.ends[i-1] + len(",")
	}
	var room [maxPosition]byte
	text := p.Append(room[:0])
	grown := len(text) - (e.ends[i] - begin)
	e.id = slices.Replace(e.id, begin, e.ends[i], text...)
	for ; i < len(e.ends) && grown != 0; i++ {
		e.ends[i] += grown
	}
}

// maxPosition is about how long a position is; a longer one costs an allocation.
const maxPosition = 128

// limit is how much of an answer is taken at a time. What is composed for one client
// is copied, and kept for one that does not read, so it must not be much.
func (e *Events) limit(c *inForce) (frames, bytes int) {
	frames, bytes = c.AnswerFrames, c.AnswerBytes
	if e != nil && e.kind != sharedEvents {
		frames, bytes = min(frames, composedFrames), min(bytes, composedBytes)
	}
	return frames, bytes
}

const (
	composedFrames = 32 // each with an id of up to maxEventID
	composedBytes  = 64 << 10
)

// A composition is memory for events that are put together for one client.
type composition struct{ bytes []byte }

var compositions = sync.Pool{New: func() any { return new(composition) }}

// free gives it back, unless a large message has made it large.
func (c *composition) free() {
	if cap(c.bytes) <= 4*composedBytes {
		compositions.Put(c)
	}
}
