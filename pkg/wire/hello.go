package wire

import "time"

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
