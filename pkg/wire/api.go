package wire

import "encoding/json"

// The bodies of requests and answers under /v1 that are not frames. The daemon
// refuses a request with a member it does not know; clients ignore unknown
// members of answers.

// OpenRequest is the body of POST /v1/sessions.
type OpenRequest struct {
	Topics []Start `json:"topics"`
	Ack    *bool   `json:"ack,omitempty"` // default true; false trusts the connection

	// Client is the subscriber's own id, the one that it publishes with. With Echo
	// false it is not sent what it published itself. Echo's default is true.
	Client string `json:"client,omitempty"`
	Echo   *bool  `json:"echo,omitempty"`
}

// SessionOpened answers POST /v1/sessions. Positions has one entry for each
// topic or pattern asked for, in that order: the position as given, or the one
// assigned; and then one for each topic that a pattern stands for.
type SessionOpened struct {
	Session   string     `json:"session"`
	Ack       bool       `json:"ack"`
	Positions []Position `json:"positions"`
	Limits    Limits     `json:"limits"`
}

// ChangeRequest is the body of PATCH /v1/sessions/{id}. Removals come first, so
// naming a topic in both moves it to a new start.
type ChangeRequest struct {
	Add    []Start  `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// SessionChanged answers a ChangeRequest: the position of each topic or pattern in
// Add, in that order, and then of each topic that a new pattern stands for.
type SessionChanged struct {
	Positions []Position `json:"positions"`
}

// PublishItem is one message in the body of POST /v1/messages: Data, any JSON value,
// or Type with either Text or Base64. In CBOR it is what ParsePublishItem reads.
type PublishItem struct {
	Topic  string          `json:"topic"`
	Data   json.RawMessage `json:"data,omitempty"`
	Type   string          `json:"type,omitempty"`
	Text   *string         `json:"text,omitempty"`
	Base64 *[]byte         `json:"base64,omitempty"`
	Key    string          `json:"key,omitempty"`
	TTL    *uint64         `json:"ttl,omitempty"` // whole seconds
	Client *string         `json:"client,omitempty"`
	ID     *string         `json:"id,omitempty"` // the idempotency key

	CBOR []byte `json:"-"` // in place of Data, if the message came in CBOR; not checked
}

// PublishResult is what became of one message of POST /v1/messages: where it was put
// or, if Problem is there, why it was not.
type PublishResult struct {
	*Published
	Problem *Problem `json:"problem,omitempty"`
}

// Published answers POST /v1/topics/{topic}/messages.
type Published struct {
	Position Position `json:"position"`
	Time     int64    `json:"time"` // Unix milliseconds
}

// SessionState answers GET /v1/sessions/{id}.
type SessionState struct {
	Session       string              `json:"session"`
	Ack           bool                `json:"ack"`
	Sent          uint64              `json:"sent"`    // frames sent
	Acked         uint64              `json:"acked"`   // frames the client has said it has
	Queued        int                 `json:"queued"`  // frames waiting for a poll
	Polling       bool                `json:"polling"` // a poll is parked or being answered
	IdleMS        int64               `json:"idle_ms"` // since the last poll
	Patterns      []string            `json:"patterns,omitempty"`
	Subscriptions []SubscriptionState `json:"subscriptions"`
}

// SubscriptionState is one topic of a session.
type SubscriptionState struct {
	Topic  string   `json:"topic"`
	Sent   Position `json:"sent"`   // of the last frame sent
	Acked  Position `json:"acked"`  // of the last frame acked; resume here
	Lag    uint64   `json:"lag"`    // the topic's newest offset less the sent one
	Behind bool     `json:"behind"` // catching up from history
}

// TopicState answers GET /v1/topics/{topic}.
type TopicState struct {
	Topic         string   `json:"topic"`
	Position      Position `json:"position"`       // of the newest message
	Oldest        Position `json:"oldest"`         // just before the oldest message held
	Messages      int      `json:"messages"`       // held
	Bytes         int      `json:"bytes"`          // held
	Subscriptions int      `json:"subscriptions"`  // of sessions and of polls in progress
	Time          int64    `json:"time,omitempty"` // of the newest message, in Unix milliseconds; none if none is held
}

// TopicList answers GET /v1/topics?after=&limit=: topics in byte order of their
// names. Next, if not empty, is the after of the following page.
type TopicList struct {
	Topics []TopicState `json:"topics"`
	Next   string       `json:"next,omitempty"`
}
