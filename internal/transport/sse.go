package transport

import (
	"slices"
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
// id has the session and the number of frames that were sent. As long as there is space,
// the positions follow: of the patterns, of the topics in hello, and of those that had a
// frame since. With them a client continues when its session is gone, as after a restart.
//
// So an Events holds at most what fits into one id: 2 KiB of text, and the 340 positions that
// may stand in it, in about 16 KiB.
type Events struct {
	at              EventID // of the last event, or where the stream begins
	id              []byte  // memory for the text of at
	heartbeatEvents bool    // see SendHeartbeatEvents
	hasPositions    bool    // behind a reference, if they fit
}

// EventsOf returns the Events of a stream that begins at positions, one for each topic.
func EventsOf(positions []wire.Position) *Events {
	return &Events{at: EventID{Positions: slices.Clone(positions)}}
}

// EventsReferringTo returns the Events of a session's stream whose client has count frames
// of the session. Ids have no positions if the client cannot continue without the session.
func EventsReferringTo(s *session.Session, count uint64, hasPositions bool) *Events {
	return &Events{at: EventID{Session: s.ID(), Count: count}, hasPositions: hasPositions}
}

// begin sets where the topics of a session are when its stream begins.
func (e *Events) begin(positions []wire.Position) {
	if e != nil && e.hasPositions {
		e.at.Positions = slices.Clone(positions)
	}
}

// advance sets the present positions of patterns. Each topic that was forgotten up to there
// has been received. A position of another epoch stays, so that its gap is announced.
func (e *Events) advance(patterns []wire.Position) {
	if !e.refer() {
		return
	}
	for _, p := range patterns {
		for i, had := range e.at.Positions {
			if had.Topic == p.Topic && had.Epoch == p.Epoch && had.Offset < p.Offset {
				e.at.Positions[i] = p
			}
		}
	}
}

// SendHeartbeatEvents makes each heartbeat an event, which a page can see, instead of a
// comment. Call it before the stream begins.
func (e *Events) SendHeartbeatEvents() { e.heartbeatEvents = true }

// heartbeat returns the heartbeat of an answer in this format.
func (e *Events) heartbeat(format frame.Format) []byte {
	if e != nil && e.heartbeatEvents {
		return frame.HeartbeatEvent()
	}
	return format.Heartbeat()
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
func (e *Events) refer() bool { return e != nil && e.at.Session != "" }

// areShared reports whether all subscribers of the topic get the same events.
func (e *Events) areShared() bool { return !e.refer() && len(e.at.Positions) == 1 }

// appendID appends the id of the last event. Once the positions do not fit any more, ids of
// the stream are references alone.
func (e *Events) appendID(dst []byte) []byte {
	id := e.at.Append(dst)
	if e.refer() && len(id)-len(dst) >= maxEventID {
		e.at.Positions = nil
		id = e.at.Append(dst)
	}
	return id
}

// edge returns a hello or end frame in a format, as an event if there are Events.
func (e *Events) edge(format frame.Format, c wire.Content) []byte {
	if e == nil {
		return format.Append(nil, c)
	}
	return frame.Event{ID: e.appendID(nil), RetryMS: frame.EventRetry(c.End)}.Append(nil, c)
}

// send calls Sink.Send. Events that are composed for this stream are sent as lead.
func (e *Events) send(to Sink, lead []byte, frames []*frame.Frame) (int, error) {
	if e == nil || len(frames) == 0 {
		return to.Send(lead, frames)
	}
	if e.areShared() {
		e.at.Positions[0] = frames[len(frames)-1].Position()
		return to.Send(lead, frames)
	}
	memory := compositions.Get().(*[]byte)
	events := append((*memory)[:0], lead...)
	for _, f := range frames {
		e.move(f)
		e.id = e.appendID(e.id[:0])
		events = f.AppendEvent(events, e.id)
	}
	_, err := to.Send(events, nil)
	if cap(events) <= 4*composedBytes { // a large message has not made it large
		*memory = events
		compositions.Put(memory)
	}
	return len(events) - len(lead), err
}

// move makes at the id of the next frame, f.
func (e *Events) move(f *frame.Frame) {
	if m := f.Moved(); m != nil {
		for _, p := range m.Positions {
			e.moveTo(p, f)
		}
		return
	}
	if e.refer() {
		e.at.Count++
	}
	e.moveTo(f.Position(), f)
}

// moveTo moves the position of a topic in at. A topic that the client has nothing of, and whose gap
// says that nothing follows, is not in the ids: it would only fill them.
func (e *Events) moveTo(p wire.Position, f *frame.Frame) {
	i := slices.IndexFunc(e.at.Positions, func(had wire.Position) bool { return had.Topic == p.Topic })
	switch {
	case i >= 0:
		e.at.Positions[i] = p
	case !e.refer():
		panic("BUG: a frame of a topic that is not in the stream")
	case f.Gap() != nil && f.Gap().IsLeftOut():
	case len(e.at.Positions) > 0: // they fit so far
		e.at.Positions = append(e.at.Positions, p)
	}
}

// Bounds of a part with events that are composed for one client.
const (
	composedFrames = 32 // each with an id of up to maxEventID
	composedBytes  = 64 << 10
)

// compositions has memory in which events are composed for one client.
var compositions = sync.Pool{New: func() any { return new([]byte) }}
