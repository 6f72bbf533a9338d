package wire

import (
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// Content is what one frame says: exactly one member is set, or none for a
// heartbeat.
type Content struct {
	Message *Message
	Gap     *Gap
	Hello   *Hello
	End     *Problem
	Reply   *Reply
}

// Counts reports whether the frame is one that acks count: a message or a gap.
func (c Content) Counts() bool { return c.Message != nil || c.Gap != nil }

// AppendJSON appends the frame as one NDJSON line; the zero Content is a heartbeat.
func (c Content) AppendJSON(dst []byte) []byte {
	switch {
	case c.Message != nil:
		return appendMessage(dst, c.Message)
	case c.Gap != nil:
		return appendGap(dst, c.Gap)
	case c.Hello != nil:
		return appendNamed(dst, "hello", c.Hello)
	case c.End != nil:
		return appendNamed(dst, "end", c.End)
	case c.Reply != nil:
		return appendReply(dst, c.Reply)
	}
	return append(dst, '\n')
}

// AppendCBOR appends the frame as one CBOR item; the zero Content is a heartbeat, null.
func (c Content) AppendCBOR(dst []byte) []byte {
	switch {
	case c.Message != nil:
		return appendMessageCBOR(dst, c.Message)
	case c.Gap != nil:
		return appendGapCBOR(dst, c.Gap)
	case c.Hello != nil:
		return appendValueCBOR(append(dst, cbor.Array|2, kindHello), "hello", c.Hello)
	case c.End != nil:
		return appendValueCBOR(append(dst, cbor.Array|2, kindEnd), "end", c.End)
	case c.Reply != nil:
		return appendReplyCBOR(dst, c.Reply)
	}
	return append(dst, cbor.Null)
}

// A Gap announces loss: the messages of Topic after After, up to and including
// Position, will not come; delivery goes on after Position.
type Gap struct {
	Topic    string    `json:"topic"`
	Reason   GapReason `json:"reason"`
	After    Position  `json:"after"`
	Position Position  `json:"position"`
}

// GapReason says why messages were lost. The list is frozen; it only grows.
type GapReason string

// The reasons of a gap.
const (
	GapExpired   GapReason = "expired"   // older than the history keeps, or past their own ttl
	GapEvicted   GapReason = "evicted"   // pushed out of the history by newer ones, or forgotten with their topic
	GapSlow      GapReason = "slow"      // the subscriber fell behind further than the history reaches
	GapConflated GapReason = "conflated" // newer messages with the same key took their place
	GapRestarted GapReason = "restarted" // the position is of another epoch, or ahead of the topic
	GapDeleted   GapReason = "deleted"   // the topic's history was emptied
)

// GapReasons returns every reason, for metrics and tests.
func GapReasons() []GapReason {
	return []GapReason{GapExpired, GapEvicted, GapSlow, GapConflated, GapRestarted, GapDeleted}
}

// check returns an error for a gap that contradicts itself. The reason may be
// one that a newer daemon knows and this client does not.
func (g *Gap) check() error {
	if g.Reason == "" || g.Topic != g.After.Topic || g.Topic != g.Position.Topic || g.Topic == "" {
		return fmt.Errorf("gap of topic %q (%s) names positions %q and %q", g.Topic, g.Reason, g.After, g.Position)
	}
	return nil
}

// A Hello tells a subscriber where its topics begin. It opens every stream, and
// the stateless polls that name a topic without a position.
type Hello struct {
	Positions []Position `json:"positions"`
	Session   string     `json:"session,omitempty"`
	Limits    *Limits    `json:"limits,omitempty"`
}

// Limits are the daemon's timeouts and bounds that a client should know.
// Durations are whole milliseconds.
type Limits struct {
	PollTimeoutMS       int64 `json:"poll_timeout_ms"`       // a poll is held this long, then answered empty
	HeartbeatMS         int64 `json:"heartbeat_ms"`          // a quiet stream sends an empty line this often
	InactivityTimeoutMS int64 `json:"inactivity_timeout_ms"` // a session without a poll ends after this
	MaxOutputDelayMS    int64 `json:"max_output_delay_ms"`   // a quiet "multiple" answer ends after this
	AnswerFrames        int   `json:"answer_frames"`         // at most so many frames in a bounded answer
	AnswerBytes         int   `json:"answer_bytes"`          // and about so many bytes
	Queue               int   `json:"queue"`                 // frames a session buffers before it falls behind
	Unacked             int   `json:"unacked"`               // frames sent and not acked that are kept
	Subscriptions       int   `json:"subscriptions"`         // topics a session may hold
	MessageBytes        int   `json:"message_bytes"`         // largest message

	WaitMS          int64 `json:"wait_ms,omitempty"`                      // a call or a session waits so long for a place
	PendingMessages int   `json:"pending_messages_per_session,omitempty"` // publishes under way that name the session
}

// PollTimeout returns PollTimeoutMS as a duration.
func (l *Limits) PollTimeout() time.Duration {
	return time.Duration(l.PollTimeoutMS) * time.Millisecond
}

// Heartbeat returns HeartbeatMS as a duration.
func (l *Limits) Heartbeat() time.Duration { return time.Duration(l.HeartbeatMS) * time.Millisecond }

// A Reply answers a command of a duplex connection. It does not count as a frame.
type Reply struct {
	Ref       *uint64    `json:"ref,omitempty"` // the command's own; none if it had none
	Positions []Position `json:"positions,omitempty"`
	Position  *Position  `json:"position,omitempty"`
	Time      int64      `json:"time,omitempty"` // Unix milliseconds; with Position
	Problem   *Problem   `json:"problem,omitempty"`
}
