package wire

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Content is the content of one frame: exactly one field is set, or none for a heartbeat and for a
// frame of an unknown kind.
type Content struct {
	Message *Message `json:"-"`
	Gap     *Gap     `json:"gap"`
	Moved   *Moved   `json:"moved"`
	Hello   *Hello   `json:"hello"`
	End     *Problem `json:"end"`
	Reply   *Reply   `json:"reply"`
	Done    *Done    `json:"done"`
}

// Counts reports whether acks count the frame: a message or a gap.
func (c Content) Counts() bool { return c.Message != nil || c.Gap != nil }

// A Gap announces loss: the messages of Topic after After, up to and including Position,
// will not be delivered. With GapRestarted and GapLost, nobody knows which messages were
// after After. Delivery continues after Position.
type Gap struct {
	Topic    string    `json:"topic"`
	Reason   GapReason `json:"reason"`
	After    Position  `json:"after"`
	Position Position  `json:"position"`
	Detail   string    `json:"detail,omitempty"` // with GapForbidden: the application's own words, for people; empty: none
}

// IsLeftOut reports whether the gap says that no message of the topic follows, because it does not
// fit into the session, or none of some topics of the pattern. A client forgets its position of a
// topic that only a pattern matches.
func (g Gap) IsLeftOut() bool { return g.Reason == GapUnfollowed && g.After == g.Position }

// String says in a sentence what is missing.
func (g Gap) String() string {
	switch g.Reason {
	case GapRestarted:
		return fmt.Sprintf("the server restarted; messages after %s may be missing", g.After)
	case GapLost:
		return fmt.Sprintf("the server's machine crashed; messages after %s up to %s may be missing", g.After, g.Position)
	case GapUnfollowed:
		if g.IsLeftOut() {
			return fmt.Sprintf("the session has no room for all topics that its patterns match; nothing of %s after %s follows", g.Topic, g.After)
		}
	case GapForbidden:
		text := fmt.Sprintf("subscribing to %s is not permitted any more; no message after %s follows", g.Topic, g.After)
		if g.Detail != "" {
			text += ": " + g.Detail
		}
		return text
	}
	return fmt.Sprintf("the messages after %s up to %s are lost", g.After, g.Position)
}

// GapReason says why messages were lost. The list is frozen; it only grows.
type GapReason string

// The reasons of a gap.
const (
	GapExpired   GapReason = "expired"   // older than history.age, or than their own ttl
	GapEvicted   GapReason = "evicted"   // replaced in the history by newer messages, or forgotten with their topic
	GapSlow      GapReason = "slow"      // the subscriber fell behind, further than the history reaches
	GapConflated GapReason = "conflated" // replaced by newer messages with the same key
	GapRestarted GapReason = "restarted" // the server restarted: the position is of another epoch, or ahead of the topic
	GapDeleted   GapReason = "deleted"   // the topic's history was emptied
	GapForbidden GapReason = "forbidden" // the subscription has ended: the new token lacks the right, or the application has forbidden the topic
	GapLost      GapReason = "lost"      // a crash of the server's machine may have lost them

	// GapUnfollowed: a pattern matches more topics than fit into its session. If After equals
	// Position, nothing of the topic follows; the topic of the gap may be the pattern, which stands
	// for any of its topics. Otherwise the topic fits again, and messages after Position follow.
	GapUnfollowed GapReason = "unfollowed"
)

// GapReasons returns every reason, for metrics and tests.
func GapReasons() []GapReason {
	return []GapReason{GapExpired, GapEvicted, GapSlow, GapConflated, GapRestarted, GapDeleted, GapForbidden, GapLost, GapUnfollowed}
}

// check returns an error for a gap that contradicts itself, or a position that is null in a
// list: encoding/json accepts it, and no frame can have it. The reason of a gap may be
// unknown here, because a newer daemon may have more reasons.
func (c Content) check() error {
	hasNull := func(positions []Position) bool { return slices.Contains(positions, Position{}) }
	switch g := c.Gap; {
	case g != nil && (g.Reason == "" || g.Topic != g.After.Topic || g.Topic != g.Position.Topic || g.Topic == ""):
		return fmt.Errorf("gap of topic %s (%s) names positions %s and %s", Quote(g.Topic), Quote(string(g.Reason)), Quote(g.After.String()), Quote(g.Position.String()))
	case c.Hello != nil && hasNull(c.Hello.Positions),
		c.Moved != nil && (c.Moved.Positions == nil || hasNull(c.Moved.Positions)),
		c.Done != nil && c.Done.Position == Position{},
		c.End != nil && hasNull(c.End.Positions),
		c.Reply != nil && hasNull(c.Reply.Positions),
		c.Reply != nil && c.Reply.Problem != nil && hasNull(c.Reply.Problem.Positions):
		return errors.New("a position is null or missing")
	}
	return nil
}

// A Moved has positions that a subscriber with echo=false has reached although it got no frame:
// only its own messages were left out before them. It keeps them like the positions of messages.
// Acks do not count it.
type Moved struct {
	Positions []Position `json:"positions"` // one for each topic, in no order
}

// A Hello has the positions at which a subscriber's topics begin. It is the first frame of every
// stream, and of stateless polls that name a topic without a position.
type Hello struct {
	Positions []Position `json:"positions"`
	Session   string     `json:"session,omitempty"`
	ExpiresMS int64      `json:"expires_ms,omitempty"` // milliseconds until the credentials expire; 0: they do not
	Limits    *Limits    `json:"limits,omitempty"`

	// Unfollowed is how many topics the session's patterns match and the session leaves out.
	Unfollowed int `json:"unfollowed,omitempty"`

	// Frames is how many messages and gaps follow in the same answer. Only stateless polls in the
	// modes single and batch have it. With fewer frames, the answer was cut.
	Frames *int `json:"frames,omitempty"`
}

// Limits are the daemon's timeouts and bounds that a client should know.
// Durations are whole milliseconds.
type Limits struct {
	PollTimeoutMS       int64 `json:"poll_timeout_ms"`       // after this time, the answer to a poll is empty
	HeartbeatMS         int64 `json:"heartbeat_ms"`          // an idle stream sends an empty line this often
	InactivityTimeoutMS int64 `json:"inactivity_timeout_ms"` // a session without a poll ends after this
	MaxOutputDelayMS    int64 `json:"max_output_delay_ms"`   // an idle "multiple" answer ends after this
	AnswerFrames        int   `json:"answer_frames"`         // most frames in an answer that is not a stream
	AnswerBytes         int   `json:"answer_bytes"`          // and about the most bytes
	Queue               int   `json:"queue"`                 // frames a session buffers before it falls behind
	Unacked             int   `json:"unacked"`               // sent frames kept until they are acknowledged
	Subscriptions       int   `json:"subscriptions"`         // topics that a session may have
	MessageBytes        int   `json:"message_bytes"`         // largest message

	IdempotencyMS   int64 `json:"idempotency_ms,omitempty"`               // the result of a publish with an idempotency key is remembered this long
	WaitMS          int64 `json:"wait_ms,omitempty"`                      // a call or a session waits this long for a slot
	PendingMessages int   `json:"pending_messages_per_session,omitempty"` // publishes in flight that name the session
}

// PollTimeout returns PollTimeoutMS as a duration.
func (l *Limits) PollTimeout() time.Duration {
	return time.Duration(l.PollTimeoutMS) * time.Millisecond
}

// Heartbeat returns HeartbeatMS as a duration.
func (l *Limits) Heartbeat() time.Duration { return time.Duration(l.HeartbeatMS) * time.Millisecond }

// A Reply answers a command. Acks do not count it.
type Reply struct {
	Ref       *uint64    `json:"ref,omitempty"` // that of the command; omitted if it had none
	Positions []Position `json:"positions,omitempty"`
	Position  *Position  `json:"position,omitempty"`
	Time      int64      `json:"time,omitempty"`       // Unix milliseconds; with Position
	ExpiresMS int64      `json:"expires_ms,omitempty"` // to an auth: until the token expires

	Unfollowed int `json:"unfollowed,omitempty"` // to a subscribe: as in Hello

	Problem *Problem `json:"problem,omitempty"`
}

// A Done ends a history. A history without it was cut.
type Done struct {
	Position Position `json:"position"` // where the next request begins: after it, or before it if the history was read backwards
	More     bool     `json:"more"`     // whether the history held frames after Position, or messages before it
}
